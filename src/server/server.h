// The HTTP server: OpenAI's API, hints and the admin API over one Service.
//
// Not responsible for: sessions, caches, queues. It decodes, asks the Service, and formats what comes back.
//
// Threading: start() and stop() from one thread. Everything else happens on the server's own threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "serving/service.h"

namespace kvtide::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;                                      // 0: any free one, see Server::port()
  std::map<std::string, std::vector<std::string>> api_keys;  // tenant -> keys; empty: everybody is "default"
  std::string admin_key;                                     // with API keys and no admin key the admin API is closed
  std::string alias;                                         // the model's name for clients; empty: its own
  bool strict_model = false;                                 // refuse other model names
  bool allow_forced_replies = false;                         // test and replay only

  size_t body_bytes_max = 64U << 20U;
  int64_t bodies_bytes_max = int64_t{1} << 30U;  // of all requests being read or answered
  size_t stream_bytes_max = 1U << 20U;           // unread bytes of one stream; a slower reader is cut off
  size_t connections_max = 1024;
  int io_threads = 2;
  int worker_threads = 2;
  std::chrono::milliseconds request_deadline{30 * 60 * 1000};
  std::chrono::milliseconds admin_deadline{10'000};
  std::chrono::milliseconds idle_timeout{75'000};    // of an unused connection
  std::chrono::milliseconds header_timeout{15'000};  // to send a request's head
  std::chrono::milliseconds body_timeout{120'000};
  std::chrono::milliseconds write_timeout{30'000};   // for one write to be taken

  // For /kv/v1/capabilities.
  std::string version = "0.1.0";
  std::string policy_name;
  bool hints = true;
  std::vector<std::string> dialects{"seed", "rfc52113", "headers", "native"};
  std::vector<std::string> verbs{"offload", "prefetch", "evict", "end", "retain", "pause", "resume"};
};

class Server {
 public:
  /// Listens when it returns. `service` must outlive the server. Errors: kInvalidArgument (host), kUnavailable (port in use, no
  /// permission), with a message that says what to do.
  static base::Result<std::unique_ptr<Server>> start(serving::Service& service, ServerOptions options);
  ~Server();

  uint16_t port() const;

  /// Stops accepting, lets running requests end until `drain` has passed, cancels the rest, closes. Blocks; idempotent. Call it before
  /// Service::stop().
  void stop(std::chrono::milliseconds drain);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvtide::server
