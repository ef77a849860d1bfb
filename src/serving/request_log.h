// Told of every request that ends: who asked, when, for which blocks. For recordings; no text of prompt or reply passes here.
//
// Threading: the methods run on the loop thread. They must not block, do I/O, throw, or call back into the Service: queue and return.
// When full: the log drops, and says so where people look; the loop goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "index/keys.h"
#include "serving/service.h"

namespace kvtide::serving {

struct RequestRecord {
  RequestId id;
  base::TimeNs arrived_ns = 0;
  std::string tenant;
  std::string session;  // as the session manager has it, derived names too; empty: its table was full of active sessions
  std::string parent;   // empty: none
  int32_t prompt_tokens = 0;
  int32_t reply_tokens = 0;  // generated until it ended
  FinishReason finish = FinishReason::kStop;
  std::vector<index::BlockKey> keys;  // of all full blocks of the prompt, also where the engine cannot reuse them
};

class RequestLog {
 public:
  virtual ~RequestLog() = default;
  /// A request ended that had been admitted, also by cancellation or error. Those that only waited touched nothing and are left out.
  virtual void finished(RequestRecord record) = 0;
  /// The reply of `id` turned out to call these tools; after its finished(), mostly within milliseconds. Never empty.
  virtual void called_tools(RequestId id, const std::vector<std::string>& tools) = 0;
};

}  // namespace kvtide::serving
