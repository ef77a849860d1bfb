// Who is admitted next, and whose prompt is computed next.
#include <algorithm>

#include "serving/loop.h"

namespace kvtide::serving {
namespace {

constexpr int kEstimatesPerTurn = 4;      // looked up again, of those whose blocks may have come or gone
constexpr int kRefusedPerTurn = 16;       // requests that are tried although no room was found for one before them
constexpr int kHeldPerTurn = 4;           // held siblings that are tried again in any turn,
constexpr int kHeldAfterProgress = 32;    // and in one where what they wait for may be there

}  // namespace

Place Loop::place(const Active& a) const { return {a.arrived_ns, a.work_ns, a.admitted_ns != 0}; }

void Loop::estimate(Active& a) {
  const CoreTimer timer(*this);
  const session::Sam::Estimate found = sam_->estimate(a.id);
  const int32_t there = found.device + found.host;
  const auto host_bytes = int64_t{found.host / engine_->info().block_tokens} * engine_->info().block_bytes;
  a.work_ns = sam_->costs().prefill_ns(found.recompute, there) + (host_bytes > 0 ? sam_->costs().load_ns(host_bytes) : 0);
  a.estimated_at = residency();
}

// Changes whenever blocks may have come or gone.
int64_t Loop::residency() const {
  const session::SamCounters& c = sam_->counters();
  return changes_ + c.evicted_device_blocks + c.evicted_host_blocks + c.written_back_blocks + c.loaded_blocks + c.prefetched_blocks;
}

// Some each turn, round the line: who has not been looked at for the longest time comes next.
void Loop::refresh_estimates() {
  const int64_t now = residency();
  int left = kEstimatesPerTurn;
  for (size_t seen = 0; seen < waiting_line_.size() && left > 0; ++seen) {
    refresh_next_ = (refresh_next_ + 1) % waiting_line_.size();
    Active& a = *actives_.at(waiting_line_[refresh_next_]);
    if (a.estimated_at == now) continue;
    estimate(a);
    --left;
  }
}

// Held siblings are looked at again each turn, more of them after progress; one that is admitted brings the others of its trunk with it.
void Loop::admit_by_affinity() {
  refresh_estimates();
  const base::TimeNs now_ns = clock_.now();
  int refused = kRefusedPerTurn;
  int held = std::exchange(progress_, false) ? kHeldAfterProgress : kHeldPerTurn;
  ++decision_;
  while (static_cast<int32_t>(running_.size()) < options_.parallel && refused > 0 && !admission_stalls(now_ns)) {
    auto best = waiting_line_.end();
    for (auto it = waiting_line_.begin(); it != waiting_line_.end(); ++it) {
      const Active& a = *actives_.at(*it);
      if (a.tried_at == decision_ || (a.held && held <= 0)) continue;
      if (best == waiting_line_.end() || goes_before(place(a), place(*actives_.at(*best)), now_ns)) best = it;
    }
    if (best == waiting_line_.end()) return;
    Active& a = *actives_.at(*best);
    const bool nobody_passes = a.admitted_ns != 0 || overdue(place(a), now_ns);
    a.tried_at = decision_;
    switch (try_admit(a)) {
      case session::Sam::Admission::kAdmitted:
        if (std::exchange(a.held, false)) held = kHeldAfterProgress;
        waiting_line_.erase(best);
        waiting_.fetch_sub(1);
        running_.push_back(a.id);
        break;
      case session::Sam::Admission::kWaitSibling:
        a.held = true;
        --held;
        break;
      case session::Sam::Admission::kWait:
        if (nobody_passes) return;
        --refused;
        break;
    }
  }
}

// Room is made by copying out what is evicted, and that takes as long as it takes. While somebody decodes, no more are admitted in a turn
// once the budget of copies is used up: the stall is then that of one eviction at most.
bool Loop::admission_stalls(base::TimeNs begin_ns) const { return decoding() && clock_.now() - begin_ns > options_.copy_budget_ns; }

// Running requests in `phase`, in the order in which they go on.
std::vector<RequestId> Loop::in_order(Phase phase) const {
  std::vector<std::pair<Place, RequestId>> line;
  for (RequestId id : running_) {
    const Active& a = *actives_.at(id);
    if (a.phase != phase) continue;
    const int32_t at = sam_->length(id);
    const double left_ns = sam_->costs().prefill_ns(static_cast<int64_t>(sam_->tokens(id).size()) - at, at);
    line.push_back({{a.started_ns, phase == Phase::kPrefill ? left_ns : a.work_ns, false}, id});
  }
  if (options_.schedule == Schedule::kAffinity) {
    const base::TimeNs now_ns = clock_.now();
    std::stable_sort(line.begin(), line.end(), [now_ns](const auto& a, const auto& b) { return goes_before(a.first, b.first, now_ns); });
  }
  std::vector<RequestId> out;
  for (const auto& [place, id] : line) out.push_back(id);
  return out;
}

}  // namespace kvtide::serving
