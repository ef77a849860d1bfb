// The Exchange of a socket: a mailbox between the App and the connection that writes.
//
// It may outlive its connection and even the listener, because the loop thread keeps the sink of a cancelled request for a while: after
// close() it holds nothing of Asio, and what is posted is dropped.
//
// Threading: as Exchange says; close() and the take functions on the strand.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "server/http/connection.h"
#include "server/http/message.h"

namespace kvtide::server {

class SocketExchange final : public Exchange {
 public:
  SocketExchange(Connection& connection, Strand strand, asio::thread_pool& pool, size_t stream_bytes_max);

  void post(std::function<void()> work) override;
  void compute(std::function<void()> work) override;
  void send(Response response) override;
  void begin_stream(std::string content_type) override;
  bool write(std::string bytes) override;
  void end_stream(std::string last, bool broken) override;
  void on_gone(std::function<void(Gone)> callback) override;

  // For the connection.
  enum class Phase { kWaiting, kWhole, kStreaming };
  Phase phase() const { return phase_; }
  bool lost() const { return lost_; }
  bool ended() const { return ended_; }
  bool broken() const { return broken_; }
  bool has_bytes() const { return !pending_.empty(); }
  Response take_response() { return std::move(response_); }
  std::string take_bytes() { return std::exchange(pending_, {}); }
  const std::string& content_type() const { return response_.content_type; }

  /// The client left: tells the App, once.
  void lose();
  /// The deadline passed: tells the App, once; answers 504 itself where the App does not.
  void expire(Response timeout);
  void close();

 private:
  void tell(Gone gone);

  Connection* connection_;  // null after close()
  const size_t stream_bytes_max_;
  Phase phase_ = Phase::kWaiting;
  Response response_;
  std::string pending_;
  bool ended_ = false;
  bool broken_ = false;
  bool lost_ = false;
  std::function<void(Gone)> gone_;

  std::mutex mutex_;  // guards the two below
  std::optional<Strand> strand_;
  asio::thread_pool* pool_;
};

}  // namespace kvtide::server
