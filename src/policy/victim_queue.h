// The best victims of one tier, kept in a heap that forgives change.
//
// Only leaves of the tier can be victims: a block goes after every block that extends it. Entries may be stale: a block that was
// touched, claimed or leased since is recognised when it reaches the top, and is put back with its present rank or skipped. What makes
// a block a *better* victim (a released claim, a child that left) must be told with note(). Time does it too: a block whose rank rises at
// a known instant has a timer and is noted then; when ranks drift all the time the heap is rebuilt now and then.
//
// A host copy of a block that is on the device too is *spare*: losing it costs nothing while the device copy lives, and when that one goes
// the block is written back again if it is still worth it. Spare copies go first under every policy, so that device and host add up.
//
// Threading: confined to the loop. Cost: note() O(log n); best() O(log n) amortised.
#pragma once

#include <compare>
#include <optional>
#include <vector>

#include "policy/eviction_policy.h"
#include "policy/ttl_wheel.h"

namespace kvtide::policy {

class VictimQueue {
 public:
  VictimQueue(const index::BlockIndex& blocks, const EvictionPolicy& policy, Tier tier) : blocks_(blocks), policy_(policy), tier_(tier) {}

  /// `block` may be a leaf of this tier now, or a better victim than before.
  void note(BlockId block, base::TimeNs now_ns);

  /// How willingly a copy is given up: spare ones before all others, then as the policy says.
  struct Rank {
    bool spare = false;
    double value = 0;
    auto operator<=>(const Rank&) const = default;
  };
  struct Victim {
    BlockId block;
    Rank rank;
  };
  /// The best victim at `now_ns`, or nothing. It stays in the queue until its copy is gone.
  std::optional<Victim> best(base::TimeNs now_ns);

  /// Best leaf must be what a scan over all leaves finds (up to equal rank). For tests and the simulator.
  void check_invariants(base::TimeNs now_ns);

 private:
  struct Entry {
    Rank rank;
    uint32_t block;
    uint32_t epoch;
    bool operator<(const Entry& other) const { return rank != other.rank ? rank < other.rank : block > other.block; }
  };

  bool is_victim(BlockId id) const;
  Rank rank(BlockId id, base::TimeNs now_ns) const;
  /// Its present rank, and a timer for the instant at which that rises. Every rank that goes into the heap comes from here.
  Rank enter(BlockId id, base::TimeNs now_ns);
  /// Notes the blocks whose ranks rose by themselves since.
  void note_risen(base::TimeNs now_ns);
  void rebuild(base::TimeNs now_ns);
  size_t heap_max() const { return 4 * blocks_.copies_in(tier_) + 1024; }  // stale entries are cleared above it

  static constexpr base::DurationNs kRebuildNs = base::kSecond / 2;

  const index::BlockIndex& blocks_;
  const EvictionPolicy& policy_;
  const Tier tier_;
  std::vector<Entry> heap_;
  TtlWheel wheel_;
  std::vector<TtlWheel::Due> due_;  // kept for its memory
  base::TimeNs rebuilt_ns_ = 0;
};

}  // namespace kvtide::policy
