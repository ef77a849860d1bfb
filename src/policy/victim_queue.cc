#include "policy/victim_queue.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"

namespace kvtide::policy {

bool VictimQueue::is_victim(BlockId id) const {
  const index::Copy& copy = blocks_.at(id).copy(tier_);
  return copy.present() && copy.children == 0 && copy.leases == 0;
}

VictimQueue::Rank VictimQueue::rank(BlockId id, base::TimeNs now_ns) const {
  const bool spare = tier_ == Tier::kHost && blocks_.at(id).copy(Tier::kDevice).present();
  return {spare, policy_.rank(id, tier_, now_ns)};
}

VictimQueue::Rank VictimQueue::enter(BlockId id, base::TimeNs now_ns) {
  const base::TimeNs rises_ns = policy_.rises_at_ns(id, tier_, now_ns);
  if (rises_ns != EvictionPolicy::kNeverNs) {
    wheel_.arm(id, blocks_.at(id).epoch, rises_ns);
  } else if (wheel_.armed() > 0) {
    wheel_.cancel(id);
  }
  return rank(id, now_ns);
}

void VictimQueue::note_risen(base::TimeNs now_ns) {
  due_.clear();
  wheel_.advance(now_ns, due_);
  for (const TtlWheel::Due& due : due_) {
    if (blocks_.alive(due.block, due.epoch)) note(due.block, now_ns);
  }
}

void VictimQueue::note(BlockId block, base::TimeNs now_ns) {
  if (!is_victim(block)) return;
  heap_.push_back({enter(block, now_ns), block.value, blocks_.at(block).epoch});
  std::push_heap(heap_.begin(), heap_.end());
  if (heap_.size() > heap_max()) rebuild(now_ns);
}

void VictimQueue::rebuild(base::TimeNs now_ns) {
  rebuilt_ns_ = now_ns;
  heap_.clear();
  blocks_.for_each([&](BlockId id) {
    if (is_victim(id)) heap_.push_back({enter(id, now_ns), id.value, blocks_.at(id).epoch});
  });
  std::make_heap(heap_.begin(), heap_.end());
}

std::optional<VictimQueue::Victim> VictimQueue::best(base::TimeNs now_ns) {
  note_risen(now_ns);
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
    const Rank present = rank(id, now_ns);
    if (present >= top.rank) return Victim{id, present};
    enter(id, now_ns);
    // It got more valuable since: sink it to its present place and look again.
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.back().rank = present;
    std::push_heap(heap_.begin(), heap_.end());
    if (heap_.front().block == top.block && heap_.front().rank == present) return Victim{id, present};
  }
  return std::nullopt;
}

void VictimQueue::check_invariants(base::TimeNs now_ns) {
  note_risen(now_ns);
  wheel_.check_invariants();
  if (!policy_.drifts()) {
    // Nothing became a better victim untold: every one stands in the heap at its present place or above.
    std::unordered_map<uint32_t, Rank> highest;
    for (const Entry& entry : heap_) {
      if (!blocks_.alive(BlockId(entry.block), entry.epoch)) continue;
      const auto [at, fresh] = highest.try_emplace(entry.block, entry.rank);
      if (!fresh) at->second = std::max(at->second, entry.rank);
    }
    blocks_.for_each([&](BlockId id) {
      if (!is_victim(id)) return;
      const auto at = highest.find(id.value);
      KV_CHECK(at != highest.end() && at->second >= rank(id, now_ns));
    });
  }
  rebuild(now_ns);
  bool any = false;
  Rank worst;
  blocks_.for_each([&](BlockId id) {
    if (!is_victim(id)) return;
    const Rank present = rank(id, now_ns);
    worst = any ? std::max(worst, present) : present;
    any = true;
  });
  const auto found = best(now_ns);
  KV_CHECK(found.has_value() == any);
  if (any) KV_CHECK(found->rank == worst);
}

}  // namespace kvtide::policy
