#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <charconv>
#include <utility>

#include "server/http/exchange.h"

namespace kvtide::server {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using ErrorCode = boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

constexpr uint32_t kHeadBytesMax = 32U << 10U;
constexpr size_t kPipelineBytesMax = 64U << 10U;  // read ahead while an answer is made; then the client's leaving shows in writes only
constexpr uint64_t kSkipBytesMax = 64U << 10U;    // body of a refused request that is read to keep the connection
constexpr std::chrono::milliseconds kLingerTimeout{2'000};

auto into(ErrorCode& error) { return asio::redirect_error(asio::use_awaitable, error); }

Method method_of(http::verb verb) {
  switch (verb) {
    case http::verb::get: return Method::kGet;
    case http::verb::head: return Method::kHead;
    case http::verb::post: return Method::kPost;
    case http::verb::put: return Method::kPut;
    case http::verb::patch: return Method::kPatch;
    case http::verb::delete_: return Method::kDelete;
    case http::verb::options: return Method::kOptions;
    default: return Method::kOther;
  }
}

std::string lower(boost::beast::string_view text) {
  std::string out(text.begin(), text.end());
  std::ranges::transform(out, out.begin(), [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); });
  return out;
}

std::string head_text(int status, unsigned version, const std::string& content_type) {
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  std::string text = version == 10 ? "HTTP/1.0 " : "HTTP/1.1 ";
  text += std::to_string(status) + " " + std::string(reason.data(), reason.size()) + "\r\n";
  if (!content_type.empty()) text += "Content-Type: " + content_type + "\r\n";
  return text;
}

std::string whole_text(const Response& response, unsigned version, bool keep_alive, bool with_body) {
  std::string text = head_text(response.status, version, response.body.empty() ? std::string() : response.content_type);
  if (response.status != 204) text += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (with_body) text += response.body;
  return text;
}

std::string chunk_text(const std::string& bytes) {
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
  std::string text(size, end);
  text.reserve(text.size() + bytes.size() + 4);
  text += "\r\n";
  text += bytes;
  text += "\r\n";
  return text;
}

/// Holds a share of the bytes that all bodies together may take.
class BodyShare {
 public:
  BodyShare() = default;
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  ~BodyShare() {
    if (total_ != nullptr) total_->fetch_sub(bytes_);
  }
  bool take(std::atomic<int64_t>& total, int64_t bytes, int64_t limit) {
    if (total.fetch_add(bytes) + bytes > limit) {
      total.fetch_sub(bytes);
      return false;
    }
    total_ = &total;
    bytes_ = bytes;
    return true;
  }

 private:
  std::atomic<int64_t>* total_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace

struct Connection::Incoming {
  http::request_parser<http::string_body> parser;
  Request request;
  BodyShare share;
};

Connection::Connection(asio::basic_stream_socket<Tcp, Strand> socket, ConnectionContext& context)
    : context_(context), stream_(std::move(socket)), wake_(stream_.get_executor()) {
  ErrorCode ignored;
  stream_.socket().set_option(Tcp::no_delay(true), ignored);  // tokens are small and must not wait for one another
}

asio::awaitable<void> Connection::run() {
  const auto self = shared_from_this();
  bool open = true;
  while (open) open = co_await serve_one();
  stream_.close();
}

void Connection::drain() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (self->idle_) self->stream_.close();
  });
}

void Connection::abort() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->stream_.close(); });
}

/// Reads and answers one request. Whether another one may follow.
asio::awaitable<bool> Connection::serve_one() {
  const bool bytes = co_await wait_for_bytes();
  if (!bytes) co_return false;
  Incoming incoming;
  const bool head = co_await read_head(incoming);
  if (!head) co_return false;

  const auto early = context_.app->screen(incoming.request);
  const bool keep_alive = incoming.parser.keep_alive();
  const unsigned version = incoming.parser.get().version();
  if (early) {
    const auto length = incoming.parser.content_length();
    const bool expects = incoming.request.headers.contains("expect");
    const bool skippable = !incoming.parser.chunked() && !expects && (!length || *length <= kSkipBytesMax);
    if (!skippable) {
      co_await refuse(*early);
      co_return false;
    }
    ErrorCode error;
    stream_.expires_after(context_.limits.header_timeout);
    co_await http::async_read(stream_, buffer_, incoming.parser, into(error));
    if (error) co_return false;
    const bool keep = keep_alive && !context_.stopping;
    const std::string text = whole_text(*early, version, keep, incoming.request.method != Method::kHead);
    const bool written = co_await write_text(text);
    co_return written && keep;
  }
  const bool body = co_await read_body(incoming);
  if (!body) co_return false;
  const bool again = co_await answer(std::move(incoming.request), keep_alive, version);
  co_return again;
}

/// Waits for the first byte of a request, which may take as long as a client keeps an unused connection.
asio::awaitable<bool> Connection::wait_for_bytes() {
  if (buffer_.size() > 0) co_return true;
  if (context_.stopping) co_return false;
  ErrorCode error;
  idle_ = true;
  stream_.expires_after(context_.limits.idle_timeout);
  const size_t bytes = co_await stream_.async_read_some(buffer_.prepare(8192), into(error));
  idle_ = false;
  buffer_.commit(bytes);
  co_return !error && bytes > 0;
}

asio::awaitable<bool> Connection::read_head(Incoming& incoming) {
  auto& parser = incoming.parser;
  parser.header_limit(kHeadBytesMax);
  parser.body_limit(context_.limits.body_bytes_max);
  ErrorCode error;
  stream_.expires_after(context_.limits.header_timeout);
  co_await http::async_read_header(stream_, buffer_, parser, into(error));
  if (error == http::error::body_limit) {
    const std::string limit = std::to_string(context_.limits.body_bytes_max);
    co_await refuse(context_.app->refusal(413, "the body is larger than the limit of " + limit + " bytes"));
    co_return false;
  }
  if (error == http::error::header_limit) {
    co_await refuse(context_.app->refusal(431, "the request head is too large"));
    co_return false;
  }
  // Of the other errors those of HTTP itself deserve an answer; the rest are a closed or timed-out socket.
  if (error) {
    const bool malformed = error.category() == http::make_error_code(http::error::bad_method).category() &&
                           error != http::error::end_of_stream && error != http::error::partial_message;
    if (malformed) co_await refuse(context_.app->refusal(400, "this is not HTTP/1.1"));
    co_return false;
  }
  const auto& message = parser.get();
  incoming.request.method = method_of(message.method());
  incoming.request.target.assign(message.target().data(), message.target().size());
  for (const auto& field : message) {
    incoming.request.headers.emplace(lower(field.name_string()), std::string(field.value().data(), field.value().size()));
  }
  co_return true;
}

asio::awaitable<bool> Connection::read_body(Incoming& incoming) {
  auto& parser = incoming.parser;
  const auto length = parser.content_length();
  const uint64_t expected = length ? *length : (parser.chunked() ? context_.limits.body_bytes_max : 0);
  if (!incoming.share.take(context_.bodies_bytes, static_cast<int64_t>(expected), context_.limits.bodies_bytes_max)) {
    co_await refuse(context_.app->refusal(503, "too many large requests at once"));
    co_return false;
  }
  const auto expect = incoming.request.headers.find("expect");
  if (expect != incoming.request.headers.end() && lower(expect->second) == "100-continue") {
    const std::string text = "HTTP/1.1 100 Continue\r\n\r\n";
    const bool written = co_await write_text(text);
    if (!written) co_return false;
  }
  ErrorCode error;
  stream_.expires_after(context_.limits.body_timeout);
  co_await http::async_read(stream_, buffer_, parser, into(error));
  if (error == http::error::body_limit) {
    const std::string limit = std::to_string(context_.limits.body_bytes_max);
    co_await refuse(context_.app->refusal(413, "the body is larger than the limit of " + limit + " bytes"));
    co_return false;
  }
  if (error) co_return false;
  incoming.request.body = std::move(parser.get().body());
  co_return true;
}

/// Lets the App answer and writes what it says. Whether another request may follow on this connection.
asio::awaitable<bool> Connection::answer(Request request, bool keep_alive, unsigned version) {
  const bool head_only = request.method == Method::kHead;
  const auto deadline = SteadyClock::now() + context_.app->deadline(request);
  auto exchange = std::make_shared<SocketExchange>(*this, stream_.get_executor(), *context_.pool, context_.limits.stream_bytes_max);
  context_.app->handle(std::move(request), exchange);

  // From here on only writes have a deadline of the socket; the pending read waits as long as the answer takes.
  stream_.expires_never();
  if (exchange->phase() != SocketExchange::Phase::kWhole) {
    watching_ = true;
    asio::co_spawn(stream_.get_executor(), watch(exchange), asio::detached);
  }
  while (exchange->phase() == SocketExchange::Phase::kWaiting && !exchange->lost()) {
    ErrorCode ignored;
    wake_.expires_at(deadline);
    co_await wake_.async_wait(into(ignored));
    if (SteadyClock::now() >= deadline) exchange->expire(context_.app->refusal(504, "the answer took too long"));
  }
  bool keep = keep_alive;
  if (exchange->phase() == SocketExchange::Phase::kWhole) {
    keep = keep && !context_.stopping;
    const std::string text = whole_text(exchange->take_response(), version, keep, !head_only);
    const bool written = co_await write_text(text);
    keep = keep && written;
  } else if (exchange->phase() == SocketExchange::Phase::kStreaming) {
    keep = keep && version >= 11;  // HTTP/1.0 has no chunks: the end of the connection is the end of the body
    const bool written = co_await write_stream(exchange, keep, version, deadline);
    keep = keep && written;
  }
  keep = keep && !exchange->lost() && !exchange->broken();
  co_await unwatch();
  exchange->close();
  co_return keep;
}

/// Whether the whole stream was written and none of it is missing.
asio::awaitable<bool> Connection::write_stream(std::shared_ptr<SocketExchange> exchange, bool keep_alive, unsigned version,
                                               SteadyClock::time_point deadline) {
  const bool chunked = version >= 11;
  std::string text = head_text(200, version, exchange->content_type());
  text += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (chunked) text += "Transfer-Encoding: chunked\r\n";
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  while (true) {
    if (exchange->has_bytes()) {
      const std::string bytes = exchange->take_bytes();
      text += chunked ? chunk_text(bytes) : bytes;
    }
    if (exchange->ended() && chunked) text += "0\r\n\r\n";
    const bool written = co_await write_text(text);
    if (!written) {
      exchange->lose();
      co_return false;
    }
    text.clear();
    // The end may have come while the last bytes were written; then one more round writes it.
    if (exchange->ended() && !exchange->has_bytes()) co_return true;
    while (!exchange->has_bytes() && !exchange->ended()) {
      if (exchange->lost()) co_return false;
      ErrorCode ignored;
      wake_.expires_at(deadline);
      co_await wake_.async_wait(into(ignored));
      if (SteadyClock::now() >= deadline) exchange->expire({});
    }
  }
}

/// Reads ahead while an answer is made; its end says whether the client left.
asio::awaitable<void> Connection::watch(std::shared_ptr<SocketExchange> exchange) {
  // A read that had completed when unwatch() cancelled it brings no error: without looking, the next read would wait for a client that waits.
  while (!unwatching_ && buffer_.size() < kPipelineBytesMax) {
    ErrorCode error;
    const size_t bytes = co_await stream_.async_read_some(buffer_.prepare(4096), into(error));
    buffer_.commit(bytes);
    if (error) {
      if (error != asio::error::operation_aborted || !unwatching_) exchange->lose();
      break;
    }
  }
  watching_ = false;
  wake();
}

/// Ends watch(). No write is pending, so cancelling the stream hits its read only.
asio::awaitable<void> Connection::unwatch() {
  unwatching_ = true;
  if (watching_) stream_.cancel();
  while (watching_) {
    ErrorCode ignored;
    wake_.expires_at(SteadyClock::time_point::max());
    co_await wake_.async_wait(into(ignored));
  }
  unwatching_ = false;
}

asio::awaitable<bool> Connection::write_text(const std::string& text) {
  if (text.empty()) co_return true;
  ErrorCode error;
  stream_.expires_after(context_.limits.write_timeout);
  co_await asio::async_write(stream_, asio::buffer(text), into(error));
  co_return !error;
}

/// Answers a request whose rest is not read, and closes.
asio::awaitable<void> Connection::refuse(Response response) {
  const std::string text = whole_text(response, 11, false, true);
  const bool written = co_await write_text(text);
  if (written) co_await linger();
}

/// Lets the client read the answer: closing with unread bytes would reset the connection and throw the answer away.
asio::awaitable<void> Connection::linger() {
  ErrorCode error;
  stream_.socket().shutdown(Tcp::socket::shutdown_send, error);
  stream_.expires_after(kLingerTimeout);
  buffer_.clear();
  while (!error) {
    co_await stream_.async_read_some(buffer_.prepare(16384), into(error));
  }
}

}  // namespace kvtide::server
