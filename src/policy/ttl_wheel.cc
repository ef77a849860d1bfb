#include "policy/ttl_wheel.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvtide::policy {

base::TimeNs TtlWheel::round_up(base::TimeNs deadline_ns) {
  if (deadline_ns <= 0) return 0;
  return (deadline_ns / kTickNs + (deadline_ns % kTickNs != 0 ? 1 : 0)) * kTickNs;
}

int64_t TtlWheel::slot_begins(size_t level, size_t place) const {
  const int64_t present = tick_ >> (kBits * level);
  const auto ahead = static_cast<int64_t>((place - static_cast<size_t>(present)) & (kSlots - 1));  // 1..63: the present slot is never used
  return (present + ahead) << (kBits * level);
}

int64_t TtlWheel::next_event() const {
  int64_t soonest = kNever;
  for (size_t level = 0; level < kLevels; ++level) {
    if (in_use_[level] == 0) continue;
    const auto present = static_cast<int>((tick_ >> (kBits * level)) & static_cast<int64_t>(kSlots - 1));
    const auto first = static_cast<size_t>(present + std::countr_zero(std::rotr(in_use_[level], present)));
    soonest = std::min(soonest, slot_begins(level, first & (kSlots - 1)));
  }
  return soonest;
}

void TtlWheel::file(uint32_t id) {
  Node& node = nodes_[id];
  size_t level = 0;
  int64_t ahead = node.tick - tick_;
  while (ahead >= static_cast<int64_t>(kSlots) && level + 1 < kLevels) {
    ++level;
    ahead = (node.tick >> (kBits * level)) - (tick_ >> (kBits * level));
  }
  ahead = std::min(ahead, static_cast<int64_t>(kSlots) - 1);  // beyond the horizon: to be filed again there
  KV_DCHECK(ahead > 0);
  const size_t place = static_cast<size_t>((tick_ >> (kBits * level)) + ahead) & (kSlots - 1);
  node.slot = static_cast<uint32_t>(level * kSlots + place);
  node.prev = kNone;
  node.next = slots_[node.slot];
  if (node.next != kNone) nodes_[node.next].prev = id;
  slots_[node.slot] = id;
  in_use_[level] |= uint64_t{1} << place;
  event_ = std::min(event_, slot_begins(level, place));
  ++filings_;
}

void TtlWheel::unlink(uint32_t id) {
  Node& node = nodes_[id];
  if (node.prev != kNone) {
    nodes_[node.prev].next = node.next;
  } else {
    slots_[node.slot] = node.next;
    if (node.next == kNone) in_use_[node.slot / kSlots] &= ~(uint64_t{1} << (node.slot % kSlots));
  }
  if (node.next != kNone) nodes_[node.next].prev = node.prev;
  node.slot = kNone;
}

void TtlWheel::arm(base::BlockId block, uint32_t epoch, base::TimeNs deadline_ns) {
  const uint32_t id = block.value;
  if (id >= nodes_.size()) nodes_.resize(static_cast<size_t>(id) + 1);
  const int64_t tick = std::max(round_up(deadline_ns) / kTickNs, tick_ + 1);
  Node& node = nodes_[id];
  node.epoch = epoch;
  if (node.slot != kNone) {
    if (node.tick == tick) return;
    unlink(id);
    --armed_;
  }
  node.tick = tick;
  file(id);
  ++armed_;
}

void TtlWheel::cancel(base::BlockId block) {
  if (block.value >= nodes_.size() || nodes_[block.value].slot == kNone) return;
  unlink(block.value);
  --armed_;
}

void TtlWheel::advance(base::TimeNs now_ns, std::vector<Due>& due) {
  const int64_t now = now_ns / kTickNs;
  while (event_ <= now) {
    // A slot may have been emptied by cancel(): the bound is then too early, and only found anew.
    const int64_t event = next_event();
    event_ = event;
    if (event > now) break;
    tick_ = event;
    // At a common beginning the upper levels come first: what they hold may be due, or move to a lower level.
    for (size_t level = kLevels; level-- > 0;) {
      const auto place = static_cast<size_t>(tick_ >> (kBits * level)) & (kSlots - 1);
      if ((tick_ & ((int64_t{1} << (kBits * level)) - 1)) != 0 || (in_use_[level] >> place & 1) == 0) continue;
      uint32_t id = slots_[level * kSlots + place];
      slots_[level * kSlots + place] = kNone;
      in_use_[level] &= ~(uint64_t{1} << place);
      while (id != kNone) {
        const uint32_t next = nodes_[id].next;
        if (nodes_[id].tick <= tick_) {
          nodes_[id].slot = kNone;
          --armed_;
          due.push_back({base::BlockId(id), nodes_[id].epoch});
        } else {
          file(id);
        }
        id = next;
      }
    }
    event_ = next_event();
  }
  tick_ = std::max(tick_, now);
}

void TtlWheel::check_invariants() const {
  size_t found = 0;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const bool used = (in_use_[slot / kSlots] >> (slot % kSlots) & 1) != 0;
    KV_CHECK(used == (slots_[slot] != kNone));
    if (!used) continue;
    const int64_t begins = slot_begins(slot / kSlots, slot % kSlots);
    KV_CHECK(begins > tick_ && begins >= event_);
    uint32_t prev = kNone;
    for (uint32_t id = slots_[slot]; id != kNone; id = nodes_[id].next) {
      KV_CHECK(nodes_[id].slot == slot && nodes_[id].prev == prev && nodes_[id].tick >= begins);
      const int64_t span = int64_t{1} << (kBits * (slot / kSlots));
      KV_CHECK(nodes_[id].tick < begins + span || slot / kSlots + 1 == kLevels);
      prev = id;
      ++found;
    }
  }
  KV_CHECK(found == armed_);
  size_t armed = 0;
  for (const Node& node : nodes_) armed += node.slot != kNone ? 1 : 0;
  KV_CHECK(armed == armed_);
}

}  // namespace kvtide::policy
