// A small HTTP/1.1 client for kvtide's own commands: JSON in and out, and server-sent events read as they come.
//
// One connection, kept alive between calls. A call blocks its thread until the answer or its deadline.
//
// Threading: thread-compatible; one client per thread.
// Errors: kUnavailable (nobody listens, or the connection broke), kDeadlineExceeded, kCorrupt (not an HTTP answer). An HTTP status is
// not an error here: the caller looks at it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvtide::app {

using Json = nlohmann::json;

struct Endpoint {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::string api_key;  // empty: none is sent
};

/// "http://host:port", "host:port" or "host". Errors: kInvalidArgument saying what a good one looks like.
base::Result<Endpoint> parse_endpoint(std::string_view url);

struct HttpReply {
  int status = 0;
  std::string body;

  bool ok() const { return status >= 200 && status < 300; }
  /// The body as JSON; null when it is not.
  Json json() const { return Json::parse(body, nullptr, /*allow_exceptions=*/false); }
  /// One line for people: the server's own error message where it gave one.
  std::string problem() const;
};

/// Splits a stream of bytes into the `data:` payloads of server-sent events. Comments and other fields are skipped.
class SseReader {
 public:
  /// Calls `on_data` for each event that `bytes` completes.
  void feed(std::string_view bytes, const std::function<void(std::string_view)>& on_data);

 private:
  std::string line_;
  std::string data_;
};

class HttpClient {
 public:
  explicit HttpClient(Endpoint endpoint);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  base::Result<HttpReply> get(const std::string& target, std::chrono::milliseconds timeout);
  base::Result<HttpReply> del(const std::string& target, std::chrono::milliseconds timeout);
  base::Result<HttpReply> post(const std::string& target, const Json& body, std::chrono::milliseconds timeout);

  /// Posts `body` and calls `on_data` with each event's data, as it comes; "[DONE]" is passed on too. `silence` is the longest wait for
  /// the next byte. An answer that is no event stream comes back with its body and calls nothing.
  base::Result<HttpReply> post_stream(const std::string& target, const Json& body, std::chrono::milliseconds silence,
                                      const std::function<void(std::string_view)>& on_data);

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

/// `text` with everything outside the unreserved set of RFC 3986 as %XX: for ids inside a path.
std::string percent_encoded(std::string_view text);

}  // namespace kvtide::app
