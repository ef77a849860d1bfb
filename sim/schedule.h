// Which request of a trace happens when: root sessions back to back on lanes, or arrival times of their own.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/trace.h"

namespace kvtide::sim {

enum class Select : uint8_t { kAll, kOdd, kEven };

/// Whether `select` takes the root session with this number.
bool selected(int32_t number, Select select);

struct ScheduleOptions {
  int32_t lanes = 8;          // sessions at a time; each lane starts its next session when the last one and its sub-agents have ended
  uint64_t seed = 1;          // of the order in which sessions are taken
  Select select = Select::kAll;
};

struct Event {
  base::TimeNs at_ns = 0;
  uint32_t session = 0;       // index into Trace::sessions
  uint32_t request = 0;       // index into its requests
};

struct Schedule {
  std::vector<Event> events;  // by time; the order is the same for every policy
  std::vector<base::TimeNs> next_ns;  // of each event: when its session asks again; kNever: that was its last request
  std::vector<int32_t> order; // numbers of the root sessions as they were taken
};
inline constexpr base::TimeNs kNever = INT64_MAX;

/// REQUIRES: lanes > 0. Lanes mean nothing to a trace with absolute times.
Schedule make_schedule(const Trace& trace, const ScheduleOptions& options);

/// Blocks of the prompt of `request`, from the start, into `path`. O(blocks).
void path_of(const Trace& trace, const TraceRequest& request, std::vector<Node>& path);

}  // namespace kvtide::sim
