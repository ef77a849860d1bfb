#include "server/http/listener.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/http/connection.h"

namespace kvtide::server {
namespace {

using ErrorCode = boost::system::error_code;
using Socket = asio::basic_stream_socket<Tcp, Strand>;
using Acceptor = asio::basic_socket_acceptor<Tcp, Strand>;

// Out of file handles: other connections must end first, and trying at once would only burn the CPU.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr int kBacklog = 512;

std::string refusal_text(const Response& response) {
  return "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: " +
         std::to_string(response.body.size()) + "\r\n\r\n" + response.body;
}

}  // namespace

struct Listener::State {
  asio::io_context io;
  asio::thread_pool pool;
  ConnectionContext context;
  size_t connections_max;
  std::string too_many;
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  Acceptor acceptor{asio::make_strand(io)};
  uint16_t port = 0;
  std::vector<std::thread> threads;
  bool stopped = false;

  mutable std::mutex mutex;  // guards the three below
  std::condition_variable none_left;
  std::unordered_map<uint64_t, std::weak_ptr<Connection>> connections;
  uint64_t next_id = 0;

  State(App& app, const ListenOptions& options)
      : io(std::max(1, options.io_threads)), pool(static_cast<size_t>(std::max(1, options.worker_threads))),
        connections_max(options.connections_max), too_many(refusal_text(app.refusal(503, "too many connections"))) {
    context.app = &app;
    context.pool = &pool;
    context.limits = ConnectionLimits{options.body_bytes_max, options.bodies_bytes_max, options.stream_bytes_max, options.idle_timeout,
                                      options.header_timeout, options.body_timeout, options.write_timeout};
  }

  base::Status listen(const ListenOptions& options);
  asio::awaitable<void> accept_all();
  void serve(Socket socket);
  bool wait_until_none(std::chrono::milliseconds timeout);
  void for_each(const std::function<void(Connection&)>& visit);
};

base::Status Listener::State::listen(const ListenOptions& options) {
  const std::string where = options.host + ":" + std::to_string(options.port);
  ErrorCode error;
  Tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), Tcp::resolver::passive, error);
  if (error || found.empty()) {
    return base::error(base::Code::kInvalidArgument, "--host: " + options.host + " is not an address of this machine");
  }
  const Tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error == asio::error::address_in_use) {
    return base::error(base::Code::kUnavailable, where + " is in use: stop what listens there or choose another --port");
  }
  if (error == asio::error::access_denied) {
    return base::error(base::Code::kUnavailable, where + ": no permission to listen there; choose a --port above 1023");
  }
  if (error) return base::error(base::Code::kUnavailable, "cannot listen on " + where + ": " + error.message());
  port = acceptor.local_endpoint(error).port();
  return {};
}

asio::awaitable<void> Listener::State::accept_all() {
  while (acceptor.is_open()) {
    ErrorCode error;
    Socket socket = co_await acceptor.async_accept(asio::make_strand(io), asio::redirect_error(asio::use_awaitable, error));
    if (context.stopping) co_return;
    if (!error) {
      serve(std::move(socket));
    } else if (acceptor.is_open()) {
      asio::steady_timer pause(io, kAcceptPause);
      ErrorCode ignored;
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }
}

void Listener::State::serve(Socket socket) {
  std::unique_lock lock(mutex);
  if (connections.size() >= connections_max) {
    lock.unlock();
    // One attempt, no waiting: the answer fits an empty socket buffer, and a crowd at the door must not cost anything.
    ErrorCode ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(too_many), ignored);
    socket.shutdown(Tcp::socket::shutdown_send, ignored);
    std::array<char, 4096> unread;  // closing with unread bytes would reset the connection before the client reads
    socket.read_some(asio::buffer(unread), ignored);
    return;
  }
  const uint64_t id = next_id++;
  auto connection = std::make_shared<Connection>(std::move(socket), context);
  connections.emplace(id, connection);
  lock.unlock();
  asio::co_spawn(connection->executor(), connection->run(), [this, id, connection](const std::exception_ptr&) {
    std::lock_guard guard(mutex);
    connections.erase(id);
    if (connections.empty()) none_left.notify_all();
  });
}

bool Listener::State::wait_until_none(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex);
  return none_left.wait_for(lock, timeout, [this] { return connections.empty(); });
}

void Listener::State::for_each(const std::function<void(Connection&)>& visit) {
  std::vector<std::shared_ptr<Connection>> alive;
  {
    std::lock_guard lock(mutex);
    for (const auto& [id, connection] : connections) {
      if (auto locked = connection.lock()) alive.push_back(std::move(locked));
    }
  }
  for (const auto& connection : alive) visit(*connection);
}

Listener::Listener(std::unique_ptr<State> state) : state_(std::move(state)) {}

Listener::~Listener() { stop(std::chrono::milliseconds(0)); }

base::Result<std::unique_ptr<Listener>> Listener::start(App& app, const ListenOptions& options) {
  auto state = std::make_unique<State>(app, options);
  if (auto listening = state->listen(options); !listening) return tl::make_unexpected(std::move(listening.error()));
  State& running = *state;
  asio::co_spawn(running.acceptor.get_executor(), running.accept_all(), asio::detached);
  for (int i = 0; i < std::max(1, options.io_threads); ++i) running.threads.emplace_back([&running] { running.io.run(); });
  return std::unique_ptr<Listener>(new Listener(std::move(state)));
}

uint16_t Listener::port() const { return state_->port; }

size_t Listener::connection_count() const {
  std::lock_guard lock(state_->mutex);
  return state_->connections.size();
}

void Listener::stop(std::chrono::milliseconds drain) {
  State& state = *state_;
  if (std::exchange(state.stopped, true)) return;
  state.context.stopping = true;
  asio::post(state.acceptor.get_executor(), [&state] {
    ErrorCode ignored;
    state.acceptor.close(ignored);
  });
  state.for_each([](Connection& connection) { connection.drain(); });
  // A connection accepted while stopping began sees `stopping` and closes by itself.
  if (!state.wait_until_none(drain)) {
    // Closing one socket ends its coroutine; only a lost wake-up could make this wait long, and the second round would cure it.
    do state.for_each([](Connection& connection) { connection.abort(); });
    while (!state.wait_until_none(std::chrono::milliseconds(1'000)));
  }
  state.pool.join();
  state.work.reset();
  for (std::thread& thread : state.threads) thread.join();
}

}  // namespace kvtide::server
