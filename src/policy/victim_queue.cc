#include "policy/victim_queue.h"

#include <algorithm>

#include "base/check.h"

namespace kvtide::policy {

bool VictimQueue::is_victim(BlockId id) const {
  const index::Copy& copy = blocks_.at(id).copy(tier_);
  return copy.present() && copy.children == 0 && copy.leases == 0;
}

double VictimQueue::rank(BlockId id, base::TimeNs now_ns) const {
  constexpr double kSpareFirst = 1e30;
  const bool spare = tier_ == Tier::kHost && blocks_.at(id).copy(Tier::kDevice).present();
  return policy_.rank(id, tier_, now_ns) + (spare ? kSpareFirst : 0.0);
}

void VictimQueue::note(BlockId block, base::TimeNs now_ns) {
  if (!is_victim(block)) return;
  heap_.push_back({rank(block, now_ns), block.value, blocks_.at(block).epoch});
  std::push_heap(heap_.begin(), heap_.end());
  if (heap_.size() > heap_max()) rebuild(now_ns);
}

void VictimQueue::rebuild(base::TimeNs now_ns) {
  rebuilt_ns_ = now_ns;
  heap_.clear();
  blocks_.for_each([&](BlockId id) {
    if (is_victim(id)) heap_.push_back({rank(id, now_ns), id.value, blocks_.at(id).epoch});
  });
  std::make_heap(heap_.begin(), heap_.end());
}

std::optional<VictimQueue::Victim> VictimQueue::best(base::TimeNs now_ns) {
  const bool stale = policy_.drifts() && now_ns - rebuilt_ns_ > kRebuildNs;
  if (stale || heap_.size() > heap_max()) rebuild(now_ns);
  while (!heap_.empty()) {
    const Entry top = heap_.front();
    const BlockId id(top.block);
    if (!blocks_.alive(id, top.epoch) || !is_victim(id)) {
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      continue;
    }
    const double present = rank(id, now_ns);
    if (present >= top.rank) return Victim{id, present};
    // It got more valuable since: sink it to its present place and look again.
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.back().rank = present;
    std::push_heap(heap_.begin(), heap_.end());
    if (heap_.front().block == top.block && heap_.front().rank == present) return Victim{id, present};
  }
  return std::nullopt;
}

void VictimQueue::check_invariants(base::TimeNs now_ns) {
  rebuild(now_ns);
  bool any = false;
  double worst = 0;
  blocks_.for_each([&](BlockId id) {
    if (!is_victim(id)) return;
    const double present = rank(id, now_ns);
    worst = any ? std::max(worst, present) : present;
    any = true;
  });
  const auto found = best(now_ns);
  KV_CHECK(found.has_value() == any);
  if (any) KV_CHECK(found->rank == worst);
}

}  // namespace kvtide::policy
