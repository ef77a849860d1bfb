// A server for tests that speaks just enough HTTP to play the part of kvtide: chat completions as event streams, hints, tiers, stats.
//
// It counts tokens as bytes / 4, claims that a prompt which extends an earlier one was reused up to there, and keeps every request body.
//
// Threading: thread-safe. One thread accepts, one serves each connection; all end with the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace kvtide::app {

class ScriptedServer {
 public:
  ScriptedServer();
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  uint16_t port() const { return port_; }
  /// Bodies received at `target`, in order of arrival.
  std::vector<nlohmann::json> bodies(const std::string& target) const;
  /// The headers of the newest request, as text.
  std::string last_head() const;
  int connections() const { return connections_; }

  // What it does differently from now on.
  std::atomic<int> fail_every{0};          // every n-th chat request answers 429
  std::atomic<bool> no_finish{false};      // streams end without a finish reason
  std::atomic<bool> hang_up_after{false};  // every connection is closed after one answer, without saying so

 private:
  struct Request {
    std::string head, method, target, body;
  };
  void accept_loop();
  void serve(int socket);
  std::string answer(const Request& request);
  std::string chat(const nlohmann::json& body);

  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<int> connections_{0};
  mutable std::mutex mutex_;
  std::vector<std::pair<std::string, nlohmann::json>> received_;
  std::string last_head_;
  std::vector<std::string> seen_prompts_;
  int chats_ = 0;
  std::vector<int> sockets_;
  std::vector<std::jthread> workers_;
  std::jthread acceptor_;
};

}  // namespace kvtide::app
