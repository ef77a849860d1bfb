// One `kvtide serve` of the replay's own: cold start, stopped at the end, nobody else's.
//
// Threading: confined to the thread that started it.
// Errors: kUnavailable with the last lines of the server's log.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/kvtide/child_process.h"
#include "apps/kvtide/http_client.h"

namespace kvtide::app {

class ReplayServer {
 public:
  /// Starts `executable serve --port 0 --port-file FILE <flags>` in `folder` and waits until it listens. Blocks.
  static base::Result<ReplayServer> start(const std::filesystem::path& executable, const std::vector<std::string>& flags,
                                          const std::filesystem::path& folder);

  const Endpoint& endpoint() const { return endpoint_; }
  /// Ends it gracefully. An exit status other than 0 is an error with the log's end.
  base::Status stop();

 private:
  ReplayServer(ChildProcess child, std::filesystem::path log) : child_(std::move(child)), log_(std::move(log)) {}

  ChildProcess child_;
  std::filesystem::path log_;
  Endpoint endpoint_;
};

}  // namespace kvtide::app
