#include "server/testing/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>

namespace kvtide::server::testing {

std::vector<nlohmann::json> Answer::events() const {
  std::vector<nlohmann::json> out;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    const std::string data = line.substr(6);
    out.push_back(data == "[DONE]" ? nlohmann::json(data) : nlohmann::json::parse(data, nullptr, false));
  }
  return out;
}

HttpClient::HttpClient(uint16_t port, int receive_buffer_bytes) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  if (receive_buffer_bytes > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void HttpClient::send_raw(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<size_t>(count);
  }
}

void HttpClient::send(const std::string& method, const std::string& target, const std::string& body, const std::string& headers) {
  std::string text = method + " " + target + " HTTP/1.1\r\nHost: test\r\n" + headers;
  if (!body.empty()) text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  send_raw(text + "\r\n" + body);
}

bool HttpClient::fill() {
  char bytes[65536];
  const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

bool HttpClient::fill_to(size_t bytes) {
  while (buffer_.size() < bytes) {
    if (!fill()) return false;
  }
  return true;
}

bool HttpClient::read_until(const std::string& text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

bool HttpClient::read_end() {
  char byte = 0;
  while (true) {
    const ssize_t count = ::recv(socket_, &byte, 1, 0);
    if (count <= 0) return count == 0 || errno == ECONNRESET;
  }
}

void HttpClient::read_chunks(Answer& answer) {
  while (read_until("\r\n")) {
    const size_t line = buffer_.find("\r\n");
    const size_t bytes = std::strtoul(buffer_.c_str(), nullptr, 16);
    if (!fill_to(line + 2 + bytes + 2)) return;
    answer.body += buffer_.substr(line + 2, bytes);
    buffer_.erase(0, line + 2 + bytes + 2);
    if (bytes == 0) {
      answer.complete = true;
      return;
    }
  }
}

Answer HttpClient::read_answer() {
  Answer answer;
  if (!read_until("\r\n\r\n")) return answer;
  const size_t end = buffer_.find("\r\n\r\n");
  std::istringstream head(buffer_.substr(0, end));
  buffer_.erase(0, end + 4);
  std::string line;
  std::getline(head, line);
  answer.status = std::atoi(line.substr(std::min<size_t>(9, line.size())).c_str());
  while (std::getline(head, line)) {
    if (line.ends_with('\r')) line.pop_back();
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
    answer.headers[name] = line.substr(colon + 2);
  }
  if (answer.headers.contains("transfer-encoding")) {
    read_chunks(answer);
  } else if (answer.headers.contains("content-length")) {
    const size_t bytes = std::strtoul(answer.headers["content-length"].c_str(), nullptr, 10);
    answer.complete = fill_to(bytes);
    answer.body = buffer_.substr(0, bytes);
    buffer_.erase(0, answer.body.size());
  } else {
    answer.complete = true;
  }
  return answer;
}

}  // namespace kvtide::server::testing
