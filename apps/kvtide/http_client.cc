#include "apps/kvtide/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <optional>
#include <utility>

namespace kvtide::app {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using base::Code;
using base::error;
using Millis = std::chrono::milliseconds;

constexpr size_t kReplyBytesMax = 256u << 20;

}  // namespace

base::Result<Endpoint> parse_endpoint(std::string_view url) {
  const std::string given(url);
  const auto bad = [&](const std::string& why) {
    return error(Code::kInvalidArgument, why + " in '" + given + "': give http://HOST:PORT, such as http://127.0.0.1:8080");
  };
  Endpoint out;
  if (url.starts_with("https://")) return bad("https is not spoken");
  if (url.starts_with("http://")) url.remove_prefix(7);
  while (url.ends_with('/')) url.remove_suffix(1);
  if (const auto colon = url.rfind(':'); colon != std::string_view::npos && url.find(']', colon) == std::string_view::npos) {
    const auto digits = url.substr(colon + 1);
    unsigned port = 0;
    const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (ec != std::errc() || end != digits.data() + digits.size() || port == 0 || port > 65535) return bad("bad port");
    out.port = static_cast<uint16_t>(port);
    url = url.substr(0, colon);
  }
  if (url.starts_with('[') && url.ends_with(']')) url = url.substr(1, url.size() - 2);
  if (url.empty() || url.find('/') != std::string_view::npos) return bad("bad host");
  out.host = std::string(url);
  return out;
}

std::string HttpReply::problem() const {
  const Json parsed = json();
  std::string message;
  if (parsed.is_object() && parsed.contains("error")) {
    const Json& e = parsed["error"];
    if (e.is_object() && e.contains("message") && e["message"].is_string()) message = e["message"].get<std::string>();
    if (e.is_string()) message = e.get<std::string>();
  }
  if (message.empty()) message = body.substr(0, 200);
  return "HTTP " + std::to_string(status) + (message.empty() ? "" : ": " + message);
}

void SseReader::feed(std::string_view bytes, const std::function<void(std::string_view)>& on_data) {
  for (const char c : bytes) {
    if (c == '\r') continue;
    if (c != '\n') {
      line_.push_back(c);
      continue;
    }
    if (line_.empty()) {
      if (!data_.empty()) on_data(data_);
      data_.clear();
    } else if (line_.starts_with("data:")) {
      std::string_view value(line_);
      value.remove_prefix(5);
      if (value.starts_with(' ')) value.remove_prefix(1);
      if (!data_.empty()) data_.push_back('\n');
      data_.append(value);
    }
    line_.clear();
  }
}

std::string percent_encoded(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto b = static_cast<unsigned char>(c);
    if ((b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '-' || b == '_' || b == '.' || b == '~') {
      out.push_back(c);
    } else {
      out += {'%', kHex[b >> 4], kHex[b & 15]};
    }
  }
  return out;
}

// Deadlines of a Beast stream work on asynchronous calls only, so each step is started asynchronously and its context run to the end.
class HttpClient::Connection {
 public:
  explicit Connection(Endpoint endpoint) : endpoint_(std::move(endpoint)) {}

  base::Result<HttpReply> call(http::verb verb, const std::string& target, std::string body, Millis timeout,
                               const std::function<void(std::string_view)>* on_data) {
    const bool reused = stream_.has_value();
    bool answered = false;
    auto reply = attempt(verb, target, body, timeout, on_data, answered);
    // A kept-alive connection may have been closed by the server meanwhile: try once more, but only when no byte of an answer came.
    if (!reply && reused && !answered && reply.error().code == Code::kUnavailable)
      reply = attempt(verb, target, body, timeout, on_data, answered);
    return reply;
  }

 private:
  template <typename Start>
  beast::error_code run(Millis timeout, Start start) {
    beast::error_code result = asio::error::would_block;
    stream_->expires_after(timeout);
    start([&result](beast::error_code ec, auto&&...) { result = ec; });
    context_.restart();
    context_.run();
    return result;
  }

  base::Status connect(Millis timeout) {
    asio::ip::tcp::resolver resolver(context_);
    beast::error_code ec;
    const auto found = resolver.resolve(endpoint_.host, std::to_string(endpoint_.port), ec);
    if (ec) return error(Code::kUnavailable, "host '" + endpoint_.host + "' is not known: " + ec.message());
    stream_.emplace(context_);
    ec = run(timeout, [&](auto done) { stream_->async_connect(found, done); });
    if (ec) return failed("cannot connect", ec);
    stream_->socket().set_option(asio::ip::tcp::no_delay(true), ec);
    buffer_.clear();
    return {};
  }

  tl::unexpected<base::Error> failed(const std::string& what, beast::error_code ec) {
    stream_.reset();
    const bool late = ec == beast::error::timeout;
    return error(late ? Code::kDeadlineExceeded : Code::kUnavailable,
                 what + " (" + endpoint_.host + ":" + std::to_string(endpoint_.port) + "): " + ec.message());
  }

  base::Result<HttpReply> attempt(http::verb verb, const std::string& target, const std::string& body, Millis timeout,
                                  const std::function<void(std::string_view)>* on_data, bool& answered) {
    if (!stream_) {
      if (auto s = connect(timeout); !s) return tl::make_unexpected(s.error());
    }
    http::request<http::string_body> request(verb, target, 11);
    request.set(http::field::host, endpoint_.host + ":" + std::to_string(endpoint_.port));
    request.set(http::field::user_agent, "kvtide");
    if (!endpoint_.api_key.empty()) request.set(http::field::authorization, "Bearer " + endpoint_.api_key);
    if (verb == http::verb::post) {
      request.set(http::field::content_type, "application/json");
      request.body() = body;
    }
    request.prepare_payload();
    beast::error_code ec = run(timeout, [&](auto done) { http::async_write(*stream_, request, done); });
    if (ec) return failed("cannot send", ec);

    http::response_parser<http::string_body> parser;
    parser.body_limit(kReplyBytesMax);
    ec = run(timeout, [&](auto done) { http::async_read_header(*stream_, buffer_, parser, done); });
    if (ec) {
      answered = parser.got_some();
      return failed("no answer", ec);
    }
    answered = true;
    const auto type = parser.get()[http::field::content_type];
    if (on_data != nullptr && type.starts_with("text/event-stream")) {
      if (auto s = read_events(parser, timeout, *on_data); !s) return tl::make_unexpected(s.error());
    } else {
      ec = run(timeout, [&](auto done) { http::async_read(*stream_, buffer_, parser, done); });
      if (ec) return failed("the answer broke off", ec);
    }
    HttpReply reply{static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
    if (!parser.get().keep_alive()) stream_.reset();
    return reply;
  }

  base::Status read_events(http::response_parser<http::string_body>& parser, Millis silence,
                           const std::function<void(std::string_view)>& on_data) {
    SseReader events;
    std::string& body = parser.get().body();
    for (;;) {
      if (!body.empty()) events.feed(std::exchange(body, {}), on_data);
      if (parser.is_done()) return {};
      const beast::error_code ec = run(silence, [&](auto done) { http::async_read_some(*stream_, buffer_, parser, done); });
      if (ec == http::error::end_of_stream && parser.is_done()) return {};
      if (ec) return failed("the stream broke off", ec);
    }
  }

  Endpoint endpoint_;
  asio::io_context context_;
  std::optional<beast::tcp_stream> stream_;
  beast::flat_buffer buffer_;
};

HttpClient::HttpClient(Endpoint endpoint) : connection_(std::make_unique<Connection>(std::move(endpoint))) {}
HttpClient::~HttpClient() = default;

base::Result<HttpReply> HttpClient::get(const std::string& target, Millis timeout) {
  return connection_->call(http::verb::get, target, {}, timeout, nullptr);
}
base::Result<HttpReply> HttpClient::del(const std::string& target, Millis timeout) {
  return connection_->call(http::verb::delete_, target, {}, timeout, nullptr);
}
base::Result<HttpReply> HttpClient::post(const std::string& target, const Json& body, Millis timeout) {
  return connection_->call(http::verb::post, target, body.dump(-1, ' ', false, Json::error_handler_t::replace), timeout, nullptr);
}
base::Result<HttpReply> HttpClient::post_stream(const std::string& target, const Json& body, Millis silence,
                                                const std::function<void(std::string_view)>& on_data) {
  return connection_->call(http::verb::post, target, body.dump(-1, ' ', false, Json::error_handler_t::replace), silence, &on_data);
}

}  // namespace kvtide::app
