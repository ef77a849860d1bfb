#include "server/http/exchange.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace kvtide::server {

SocketExchange::SocketExchange(Connection& connection, Strand strand, asio::thread_pool& pool, size_t stream_bytes_max)
    : connection_(&connection), stream_bytes_max_(stream_bytes_max), strand_(std::move(strand)), pool_(&pool) {}

void SocketExchange::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (strand_) asio::post(*strand_, std::move(work));
}

void SocketExchange::compute(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (pool_ != nullptr) asio::post(*pool_, std::move(work));
}

void SocketExchange::send(Response response) {
  if (connection_ == nullptr || phase_ != Phase::kWaiting) return;
  phase_ = Phase::kWhole;
  response_ = std::move(response);
  ended_ = true;
  connection_->wake();
}

void SocketExchange::begin_stream(std::string content_type) {
  if (connection_ == nullptr || phase_ != Phase::kWaiting) return;
  phase_ = Phase::kStreaming;
  response_.content_type = std::move(content_type);
  connection_->wake();
}

bool SocketExchange::write(std::string bytes) {
  if (connection_ == nullptr || phase_ != Phase::kStreaming || ended_) return true;  // nobody left to tell
  if (pending_.size() + bytes.size() > stream_bytes_max_) return false;
  pending_ += bytes;
  connection_->wake();
  return true;
}

void SocketExchange::end_stream(std::string last, bool broken) {
  if (connection_ == nullptr || phase_ != Phase::kStreaming || ended_) return;
  pending_ += last;
  ended_ = true;
  broken_ = broken;
  connection_->wake();
}

void SocketExchange::on_gone(std::function<void(Gone)> callback) { gone_ = std::move(callback); }

void SocketExchange::tell(Gone gone) {
  if (ended_ || !gone_) return;
  const auto callback = std::exchange(gone_, nullptr);
  callback(gone);
}

void SocketExchange::lose() {
  if (lost_) return;
  lost_ = true;
  tell(Gone::kDisconnected);
  if (connection_ != nullptr) connection_->wake();
}

void SocketExchange::expire(Response timeout) {
  tell(Gone::kDeadline);
  if (phase_ == Phase::kWaiting) send(std::move(timeout));
  if (!ended_) end_stream({}, true);
}

void SocketExchange::close() {
  connection_ = nullptr;
  gone_ = nullptr;
  std::lock_guard lock(mutex_);
  strand_.reset();
  pool_ = nullptr;
}

}  // namespace kvtide::server
