// Time as a value and as a seam. The core never reads a clock: it is told `now`.
//
// Threading: SteadyClock is thread-safe; ManualClock is thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvtide::base {

using TimeNs = int64_t;      // nanoseconds since an arbitrary start; monotonic within a run
using DurationNs = int64_t;  // nanoseconds

inline constexpr DurationNs kMicrosecond = 1'000;
inline constexpr DurationNs kMillisecond = 1'000'000;
inline constexpr DurationNs kSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimeNs now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

class ManualClock final : public Clock {
 public:
  TimeNs now() const override { return now_ns_; }
  void advance(DurationNs by_ns) { now_ns_ += by_ns; }

 private:
  TimeNs now_ns_ = 0;
};

}  // namespace kvtide::base
