// The listening socket, its threads and its connections.
//
// Threading: start() and stop() from one thread; connection_count() from any. stop() blocks until every thread has ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/http/message.h"

namespace kvtide::server {

struct ListenOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one
  int io_threads = 2;
  int worker_threads = 2;
  size_t connections_max = 1024;
  size_t body_bytes_max = 64U << 20U;
  int64_t bodies_bytes_max = int64_t{1} << 30U;
  size_t stream_bytes_max = 1U << 20U;
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds header_timeout{15'000};
  std::chrono::milliseconds body_timeout{120'000};
  std::chrono::milliseconds write_timeout{30'000};
};

class Listener {
 public:
  /// `app` must outlive the listener. Errors: kInvalidArgument (host), kUnavailable (port in use, not permitted).
  static base::Result<std::unique_ptr<Listener>> start(App& app, const ListenOptions& options);
  ~Listener();

  uint16_t port() const;
  size_t connection_count() const;

  /// Stops accepting, lets running requests end until `drain` has passed, closes the rest. Idempotent.
  void stop(std::chrono::milliseconds drain);

 private:
  struct State;
  explicit Listener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvtide::server
