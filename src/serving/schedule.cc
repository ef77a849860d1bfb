#include "serving/schedule.h"

namespace kvtide::serving {

std::optional<Schedule> parse_schedule(std::string_view name) {
  if (name == "fcfs") return Schedule::kFcfs;
  if (name == "affinity") return Schedule::kAffinity;
  return std::nullopt;
}

bool overdue(const Place& place, base::TimeNs now_ns) {
  return static_cast<double>(now_ns - place.since_ns) > kPassedOverWorks * place.work_ns + static_cast<double>(kPassedOverNs);
}

bool goes_before(const Place& a, const Place& b, base::TimeNs now_ns) {
  if (a.was_running != b.was_running) return a.was_running;
  const bool a_overdue = a.was_running || overdue(a, now_ns);
  const bool b_overdue = b.was_running || overdue(b, now_ns);
  if (a_overdue != b_overdue) return a_overdue;
  if (a_overdue) return a.since_ns < b.since_ns;
  return static_cast<double>(a.since_ns - b.since_ns) + a.work_ns - b.work_ns < 0;
}

}  // namespace kvtide::serving
