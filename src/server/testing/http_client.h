// A plain HTTP/1.1 client on a POSIX socket, for tests that want to see bytes and to misbehave.
//
// Threading: thread-compatible. Blocks, at most ten seconds a call; then it answers what it has.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvtide::server::testing {

struct Answer {
  int status = 0;  // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;  // the body ended as announced

  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  /// The data of a stream's events, "[DONE]" as a string.
  std::vector<nlohmann::json> events() const;
};

class HttpClient {
 public:
  /// `receive_buffer_bytes` 0: the system's.
  explicit HttpClient(uint16_t port, int receive_buffer_bytes = 0);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return socket_ >= 0; }
  void send_raw(const std::string& bytes);
  void send(const std::string& method, const std::string& target, const std::string& body = {}, const std::string& headers = {});
  Answer read_answer();
  /// Until `text` has come; whether it came.
  bool read_until(const std::string& text);
  /// Whether the server has closed the connection, waiting for it.
  bool read_end();
  void close();

  Answer call(const std::string& method, const std::string& target, const std::string& body = {}, const std::string& headers = {}) {
    send(method, target, body, headers);
    return read_answer();
  }
  Answer post(const std::string& target, const nlohmann::json& body, const std::string& headers = {}) {
    return call("POST", target, body.dump(), headers);
  }

 private:
  bool fill();
  bool fill_to(size_t bytes);
  void read_chunks(Answer& answer);

  int socket_ = -1;
  std::string buffer_;
};

}  // namespace kvtide::server::testing
