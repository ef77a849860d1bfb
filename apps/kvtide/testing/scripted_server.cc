#include "apps/kvtide/testing/scripted_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include "base/check.h"

namespace kvtide::app {
namespace {

using Json = nlohmann::json;

std::string http(int status, const std::string& type, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

size_t content_length(std::string head) {
  std::transform(head.begin(), head.end(), head.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const size_t at = head.find("content-length:");
  return at == std::string::npos ? 0 : std::stoul(head.substr(at + 15));
}

std::string chunk(const std::string& data) {
  std::ostringstream out;
  out << std::hex << data.size() << "\r\n" << data << "\r\n";
  return out.str();
}

Json choice(const Json& delta, const Json& finish_reason) {
  return {{"choices", Json::array({Json{{"index", 0}, {"delta", delta}, {"finish_reason", finish_reason}}})}};
}

std::string event(const Json& json) { return chunk("data: " + json.dump() + "\n\n"); }

}  // namespace

ScriptedServer::ScriptedServer() {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  KV_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(listener_, 64) == 0);
  socklen_t length = sizeof address;
  KV_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { accept_loop(); });
}

ScriptedServer::~ScriptedServer() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  {
    std::lock_guard lock(mutex_);
    for (const int s : sockets_) shutdown(s, SHUT_RDWR);
  }
  workers_.clear();
  for (const int s : sockets_) close(s);
}

std::vector<Json> ScriptedServer::bodies(const std::string& target) const {
  std::lock_guard lock(mutex_);
  std::vector<Json> out;
  for (const auto& [where, body] : received_) {
    if (where == target) out.push_back(body);
  }
  return out;
}

std::string ScriptedServer::last_head() const {
  std::lock_guard lock(mutex_);
  return last_head_;
}

void ScriptedServer::accept_loop() {
  for (;;) {
    const int s = accept(listener_, nullptr, nullptr);
    if (s < 0) return;
    ++connections_;
    std::lock_guard lock(mutex_);
    sockets_.push_back(s);
    workers_.emplace_back([this, s] { serve(s); });
  }
}

void ScriptedServer::serve(int socket) {
  std::string buffer;
  std::array<char, 4096> part{};
  for (;;) {
    Request request;
    size_t head_end = 0, body_size = 0;
    const auto complete = [&] {
      head_end = buffer.find("\r\n\r\n");
      if (head_end == std::string::npos) return false;
      body_size = content_length(buffer.substr(0, head_end));
      return buffer.size() >= head_end + 4 + body_size;
    };
    while (!complete()) {
      const ssize_t got = recv(socket, part.data(), part.size(), 0);
      if (got <= 0) return;
      buffer.append(part.data(), static_cast<size_t>(got));
    }
    request.head = buffer.substr(0, head_end);
    request.body = buffer.substr(head_end + 4, body_size);
    buffer.erase(0, head_end + 4 + body_size);
    std::istringstream(request.head) >> request.method >> request.target;
    const std::string reply = answer(request);
    if (send(socket, reply.data(), reply.size(), MSG_NOSIGNAL) < 0) return;
    if (hang_up_after) {
      shutdown(socket, SHUT_RDWR);
      return;
    }
  }
}

std::string ScriptedServer::answer(const Request& request) {
  const Json body = request.body.empty() ? Json() : Json::parse(request.body, nullptr, false);
  {
    std::lock_guard lock(mutex_);
    received_.emplace_back(request.target, body);
    last_head_ = request.head;
  }
  if (request.target == "/v1/chat/completions") return chat(body);
  if (request.target == "/kv/v1/hints") {
    Json receipts = Json::array();
    for (const Json& hint : body["hints"])
      receipts.push_back({{"verb", hint["verb"]}, {"session_id", hint["session_id"]}, {"status", "applied"}});
    return http(200, "application/json", Json{{"receipts", receipts}}.dump());
  }
  if (request.target == "/kv/v1/tiers") {
    return http(
        200, "application/json",
        R"({"tiers":[{"name":"device","budget_bytes":1000,"used_bytes":400,"peak_bytes":900},{"name":"host","budget_bytes":2000,"used_bytes":1,"peak_bytes":50}]})");
  }
  if (request.target == "/kv/v1/capabilities")
    return http(200, "application/json", R"({"engine":{"block_tokens":64,"block_bytes":65536}})");
  if (request.target == "/kv/v1/stats") return http(200, "application/json", R"({"byte_mismatches":0,"prompt_tokens":10})");
  return http(404, "application/json", R"({"error":{"message":"no such page"}})");
}

std::string ScriptedServer::chat(const Json& body) {
  std::string prompt;
  for (const Json& m : body["messages"]) prompt += m["content"].get<std::string>() + "\n";
  size_t reused = 0;
  bool refuse;
  {
    std::lock_guard lock(mutex_);
    refuse = fail_every > 0 && ++chats_ % fail_every == 0;
    for (const std::string& seen : seen_prompts_) {
      if (prompt.starts_with(seen)) reused = std::max(reused, seen.size());
    }
    seen_prompts_.push_back(prompt);
  }
  if (refuse) return http(429, "application/json", R"({"error":{"message":"the queue is full"}})");
  const std::string text = body.value("kvtide_forced_reply", "hi");
  const auto tokens = static_cast<int64_t>(prompt.size() / 4), hit = static_cast<int64_t>(reused / 4);
  const Json usage{{"prompt_tokens", tokens}, {"completion_tokens", text.size() / 4 + 1}};
  const Json kv{{"reused", {{"device", hit}, {"host", 0}}}, {"recomputed", tokens - hit}, {"compulsory", tokens - hit}};
  if (!body.value("stream", false)) return http(200, "application/json", Json{{"usage", usage}, {"kv", kv}}.dump());
  std::string out = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  out += event(choice({{"role", "assistant"}}, nullptr)) + event(choice({{"content", text}}, nullptr));
  if (!no_finish) {
    Json last = choice(Json::object(), "stop");
    last["usage"] = usage;
    last["kv"] = kv;
    out += event(last);
  }
  return out + chunk("data: [DONE]\n\n") + "0\r\n\r\n";
}

}  // namespace kvtide::app
