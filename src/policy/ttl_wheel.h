// When what becomes worth less by itself: one timer a block, in a hierarchical timing wheel (Varghese and Lauck, 1987).
//
// Four levels of 64 slots over ticks of a millisecond. A timer lies in the lowest level whose next 63 slots reach its tick, never in the
// present slot of any level, so it cannot be met before its time and then be forgotten; one beyond the horizon (4.6 hours) is filed as far
// out as there is and looked at again there. Bitmaps of the slots in use let time jump over quiet hours.
//
// Timers carry the epoch of their block: when an id is used again, the old timer fires for the old epoch only, or is replaced.
//
// Threading: confined to the loop. Cost: arm() and cancel() O(1); advance() O(1) while nothing is due, else O(levels) a timer over its
// life. Never scans blocks. Memory: 24 bytes for each block id up to the highest one armed; none before the first.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace kvtide::policy {

class TtlWheel {
 public:
  static constexpr base::DurationNs kTickNs = base::kMillisecond;

  /// The first instant at which a timer armed for `deadline_ns` can fire: deadlines count in whole ticks, rounded up.
  static base::TimeNs round_up(base::TimeNs deadline_ns);

  struct Due {
    base::BlockId block;
    uint32_t epoch;
  };

  TtlWheel() { slots_.fill(kNone); }

  /// The one timer of `block` fires at round_up(deadline_ns), at the next tick if that has passed. Replaces an earlier one.
  void arm(base::BlockId block, uint32_t epoch, base::TimeNs deadline_ns);
  /// No effect when none is armed.
  void cancel(base::BlockId block);

  /// Takes out every timer whose time is not after `now_ns` and appends it to `due`. Time never runs backwards.
  void advance(base::TimeNs now_ns, std::vector<Due>& due);

  size_t armed() const { return armed_; }
  /// Timers put into a slot so far, by arm() and by moving closer: the work done.
  uint64_t filings() const { return filings_; }
  size_t memory_bytes() const { return nodes_.capacity() * sizeof(Node) + sizeof(*this); }

  /// Every timer is in the slot where it belongs and nothing is lost; aborts otherwise. O(blocks); for tests.
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kBits = 6;
  static constexpr size_t kSlots = 1U << kBits;
  static constexpr size_t kLevels = 4;
  static constexpr int64_t kNever = INT64_MAX;

  struct Node {
    int64_t tick = 0;        // when to fire
    uint32_t epoch = 0;
    uint32_t slot = kNone;   // level * kSlots + place; kNone: not armed
    uint32_t prev = kNone;
    uint32_t next = kNone;
  };

  /// The tick at which the slot is looked at: when its span begins.
  int64_t slot_begins(size_t level, size_t place) const;
  int64_t next_event() const;
  void file(uint32_t id);
  void unlink(uint32_t id);

  std::vector<Node> nodes_;                       // by block id
  std::array<uint32_t, kLevels * kSlots> slots_;  // heads of lists
  std::array<uint64_t, kLevels> in_use_{};        // bit = slot not empty
  int64_t tick_ = 0;                              // all timers up to it have fired
  int64_t event_ = kNever;                        // no slot is to be looked at before
  size_t armed_ = 0;
  uint64_t filings_ = 0;
};

}  // namespace kvtide::policy
