// HTTP as the rest of the server sees it: plain values, and the way back to one client. No socket types.
//
// Threading: values are thread-compatible; Exchange says which calls may come from where.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvtide::server {

enum class Method { kGet, kHead, kPost, kPut, kPatch, kDelete, kOptions, kOther };

using Headers = std::map<std::string, std::string>;  // names in lower case; of repeated headers the first

struct Request {
  Method method = Method::kGet;
  std::string target;  // path and query as sent
  Headers headers;
  std::string body;    // empty while only the head is known
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // further ones
};

/// Why nobody waits for the answer any more.
enum class Gone { kDisconnected, kDeadline };

/// The way back to the client of one request. It ends with send() or end_stream(), or with the client's leaving; later calls do nothing.
///
/// Threading: post() and compute() from any thread, also long after the end; everything else on the strand, that is inside the App's
/// handle(), the callback of on_gone() and work given to post(). Nothing blocks.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Runs `work` on the strand of this connection; drops it when the exchange has ended.
  virtual void post(std::function<void()> work) = 0;
  /// Runs `work` on the worker pool; drops it when the exchange has ended.
  virtual void compute(std::function<void()> work) = 0;

  virtual void send(Response response) = 0;

  /// Sends the head of a 200 answer whose body follows by write().
  virtual void begin_stream(std::string content_type) = 0;
  /// Whether `bytes` were taken. They are not when the client reads so slowly that the stream's buffer is full.
  virtual bool write(std::string bytes) = 0;
  /// `last` is sent whatever the buffer holds. With `broken` the connection is closed afterwards.
  virtual void end_stream(std::string last, bool broken) = 0;

  /// Called at most once, when the client leaves or the deadline passes before the end. On kDeadline the client still listens: an answer
  /// may be sent.
  virtual void on_gone(std::function<void(Gone)> callback) = 0;
};

/// What a listener serves.
class App {
 public:
  virtual ~App() = default;

  /// Looks at a head before the body is read: an answer refuses the request (bad route, bad key). Any thread; never throws, never blocks.
  virtual std::optional<Response> screen(const Request& head) = 0;

  /// Starts to answer. On the strand of the connection; never throws, never blocks.
  virtual void handle(Request request, std::shared_ptr<Exchange> exchange) = 0;

  /// The answer to a request that could not be read (413, 400, 503 ...).
  virtual Response refusal(int status, std::string message) = 0;

  /// How long an answer may take.
  virtual std::chrono::milliseconds deadline(const Request& head) = 0;
};

}  // namespace kvtide::server
