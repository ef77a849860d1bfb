// A bounded many-to-one queue. When full, try_push answers false and the caller sheds the work: nothing here waits for room.
//
// Threading: thread-safe; one consumer.
#pragma once

#include <condition_variable>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace kvtide::base {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  /// Whether `item` was taken. It was not when the queue is full or closed.
  bool try_push(T item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  /// Everything queued, in order; empty at once when nothing is.
  std::vector<T> drain() {
    std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }

  /// As drain(), but waits up to `timeout` for the first item.
  std::vector<T> wait_and_drain(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [this] { return !items_.empty() || closed_; });
    return std::exchange(items_, {});
  }

  /// From now on pushes fail and waits end at once.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;
  bool closed_ = false;
};

}  // namespace kvtide::base
