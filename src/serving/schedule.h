// Which request goes next, and how long it may be passed over.
//
// A request's place in line is its arrival plus the work that is predicted until its first token, from what is resident now: a short one
// passes those that arrived up to their own work earlier, and waiting is credited second by second. So sessions that are on the device or
// come back to it go first, and a cold prompt is passed only by what arrived soon after it. Beyond that there is a hard bound: see overdue().
//
// Threading: pure functions. O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/clock.h"

namespace kvtide::serving {

enum class Schedule : uint8_t {
  kFcfs,      // by arrival; prompts by admission
  kAffinity,  // by predicted work, within the bound
};
std::optional<Schedule> parse_schedule(std::string_view name);

/// A request is passed over for at most this many times its own predicted work, and kPassedOverNs more.
inline constexpr int kPassedOverWorks = 2;
inline constexpr base::DurationNs kPassedOverNs = 5 * base::kSecond;

struct Place {
  base::TimeNs since_ns = 0;   // it can be passed over since then
  double work_ns = 0;          // predicted, until its first token
  bool was_running = false;    // it gave way to others once: it does not again
};

/// Passed over for as long as it may be: nobody goes before it any more, except what is overdue and came earlier.
bool overdue(const Place& place, base::TimeNs now_ns);

/// Strict weak order of two places. Equal ones keep the order they have.
bool goes_before(const Place& a, const Place& b, base::TimeNs now_ns);

}  // namespace kvtide::serving
