// What a stream says next: the difference between two partial parses of one reply.
//
// Deltas only add. A tool call is announced with id and name once its name is known; then its arguments grow at the end.
// Should a later parse take something back, that part is skipped rather than sent twice.
//
// Threading: thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "engine/api/text_model.h"
#include "server/openai/json_fields.h"

namespace kvtide::server {

/// A call id for calls that the model left without one. Thread-safe.
std::string make_id(std::string_view prefix);

class ReplyDiff {
 public:
  /// OpenAI delta objects that lead from the last reply to `now`; empty when nothing is new. Cost: O(size of the reply).
  std::vector<Json> advance(const engine::ParsedReply& now);

  /// The rest of a reply that does not parse: what of `raw` was not yet said as content, when nothing but content was said.
  std::vector<Json> finish_raw(const std::string& raw);

  size_t calls_announced() const { return calls_.size(); }

 private:
  struct Call {
    std::string arguments;  // said so far
  };
  std::string content_;
  std::string reasoning_;
  std::vector<Call> calls_;
};

}  // namespace kvtide::server
