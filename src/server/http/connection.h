// One client's socket: reads requests, hands them to the App, writes the answers.
//
// While an answer is made, a read is pending on the socket: a client that leaves is noticed at once. Bytes it brings belong to the next
// request (pipelining) and are kept, up to a limit.
//
// Threading: everything runs on the connection's strand, except drain() and abort(), which may come from any thread. Never blocks.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http/message.h"

namespace kvtide::server {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using Strand = asio::strand<asio::io_context::executor_type>;

struct ConnectionLimits {
  size_t body_bytes_max = 64U << 20U;
  int64_t bodies_bytes_max = int64_t{1} << 30U;  // of all requests being read or answered; above it: 503
  size_t stream_bytes_max = 1U << 20U;           // written but not yet taken by the client of a stream
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds header_timeout{15'000};
  std::chrono::milliseconds body_timeout{120'000};
  std::chrono::milliseconds write_timeout{30'000};
};

/// What the connections of one listener share. Outlives them all.
struct ConnectionContext {
  App* app = nullptr;
  asio::thread_pool* pool = nullptr;
  ConnectionLimits limits;
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> bodies_bytes{0};
};

class SocketExchange;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Stream = boost::beast::basic_stream<Tcp, Strand>;

  Connection(asio::basic_stream_socket<Tcp, Strand> socket, ConnectionContext& context);

  /// Serves until the client leaves, an error, or drain(). Runs on executor().
  asio::awaitable<void> run();
  Strand executor() { return stream_.get_executor(); }

  /// No further request; a running one is answered.
  void drain();
  /// Closes now; a running request is told that its client is gone.
  void abort();

 private:
  friend class SocketExchange;
  struct Incoming;

  asio::awaitable<bool> serve_one();
  asio::awaitable<bool> wait_for_bytes();
  asio::awaitable<bool> read_head(Incoming& incoming);
  asio::awaitable<bool> read_body(Incoming& incoming);
  asio::awaitable<bool> answer(Request request, bool keep_alive, unsigned version);
  asio::awaitable<bool> write_stream(std::shared_ptr<SocketExchange> exchange, bool keep_alive, unsigned version,
                                     std::chrono::steady_clock::time_point deadline);
  asio::awaitable<void> watch(std::shared_ptr<SocketExchange> exchange);
  asio::awaitable<void> unwatch();
  asio::awaitable<bool> write_text(const std::string& text);
  asio::awaitable<void> refuse(Response response);
  asio::awaitable<void> linger();
  void wake() { wake_.cancel(); }

  ConnectionContext& context_;
  Stream stream_;
  boost::beast::flat_buffer buffer_;
  // Waited on as a condition variable.
  asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Strand> wake_;
  bool idle_ = false;
  bool watching_ = false;
  bool unwatching_ = false;
};

}  // namespace kvtide::server
