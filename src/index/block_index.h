// The prefix tree of blocks: which blocks are known, where their copies are, and who claims them.
//
// A block is a node; its key chains over its parent's, so a child is found by one hash look-up and no token is stored. A node lives
// while it has a copy in some tier, a claim, or a child. Nobody owns a block: sessions claim it, tiers hold copies of it.
//
// Not responsible for: which copy to drop (policy/), what a session is (session/).
//
// Threading: confined to the loop. Never blocks. Cost: every call O(1) amortised, except where stated; about 150 bytes a block.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "index/keys.h"

namespace kvtide::index {

using base::BlockId;
using base::BranchId;
using base::SlotId;

enum class Tier : uint8_t { kDevice = 0, kHost = 1, kDisk = 2, kPool = 3 };
inline constexpr size_t kTiers = 4;
std::string_view tier_name(Tier tier);

/// Copies of one block in one tier. In the device `holders` counts sequences; elsewhere it is 0 or 1 and `slot` says where.
struct Copy {
  SlotId slot;
  uint16_t holders = 0;
  uint16_t leases = 0;       // copies being moved now: neither evicted nor overwritten
  uint32_t children = 0;     // child blocks that have a copy in this tier; 0 = a leaf of the tier

  bool present() const { return holders > 0; }
};

struct Block {
  BlockKey key;
  BlockId parent;                    // none: first block of a chain
  uint32_t depth = 0;                // tokens before it / block tokens
  uint32_t children = 0;
  uint32_t claims = kNoClaim;        // head of a list in the claim pool
  uint32_t epoch = 0;                // grows each time the id is reused
  uint32_t uses = 0;                 // requests that reused it
  base::TimeNs last_used_ns = 0;
  std::array<Copy, kTiers> copies;

  static constexpr uint32_t kNoClaim = UINT32_MAX;
  Copy& copy(Tier tier) { return copies[static_cast<size_t>(tier)]; }
  const Copy& copy(Tier tier) const { return copies[static_cast<size_t>(tier)]; }
};

class BlockIndex {
 public:
  BlockIndex();

  /// The block with this key, or an invalid id.
  BlockId find(const BlockKey& key) const;

  /// The block with this key, made when unknown. A new one without copy, claim or child lives until sweep(). REQUIRES: parent is
  /// valid, or invalid for a first block.
  BlockId ensure(BlockId parent, const BlockKey& key);

  const Block& at(BlockId id) const { return blocks_[id.value]; }
  bool alive(BlockId id, uint32_t epoch) const { return id.value < blocks_.size() && live_[id.value] && blocks_[id.value].epoch == epoch; }

  /// One more holder in `tier`. `slot` says where (device: ignored).
  void add_copy(BlockId id, Tier tier, SlotId slot);
  /// One holder less. REQUIRES: present, and no lease unless another holder remains.
  void remove_copy(BlockId id, Tier tier);
  /// Where a copy that was added without a slot lies.
  void set_slot(BlockId id, Tier tier, SlotId slot) { blocks_[id.value].copy(tier).slot = slot; }
  void lease(BlockId id, Tier tier);
  void unlease(BlockId id, Tier tier);

  void touch(BlockId id, base::TimeNs now_ns, bool reused);

  /// Adds `branch` to the claimants; no effect when it is one. O(claimants of this block).
  void claim(BlockId id, BranchId branch);
  /// Removes it; whether it was one.
  bool release(BlockId id, BranchId branch);
  bool claimed_by(BlockId id, BranchId branch) const;
  bool claimed(BlockId id) const { return at(id).claims != Block::kNoClaim; }
  /// Whether anybody but `branch` claims it.
  bool claimed_by_other(BlockId id, BranchId branch) const;

  template <typename F>
  void for_each_claim(BlockId id, F&& f) const {
    for (uint32_t c = at(id).claims; c != Block::kNoClaim; c = claims_[c].next) f(claims_[c].branch);
  }

  /// Forgets `id` and then its ancestors, as far as nothing holds them. Call after the last copy, claim or child may have gone.
  void sweep(BlockId id);

  size_t size() const { return live_count_; }
  /// Bytes of this structure, for the bound of bytes a block.
  size_t memory_bytes() const;
  size_t copies_in(Tier tier) const { return copies_in_tier_[static_cast<size_t>(tier)]; }

  template <typename F>
  void for_each(F&& f) const {
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (live_[i]) f(BlockId(i));
    }
  }

  /// Recounts everything from scratch and aborts on a difference. O(n); for tests and the simulator.
  void check_invariants() const;

 private:
  struct Claim {
    BranchId branch;
    uint32_t next;
  };

  size_t bucket(const BlockKey& key) const;
  void grow();
  void erase_from_table(BlockId id);

  // Open addressing with linear probing over block ids. Keys are uniform already, so their first bytes are the hash. Invariant: every
  // live block is reachable from its bucket without crossing an empty one.
  std::vector<uint32_t> table_;
  std::vector<Block> blocks_;
  std::vector<uint8_t> live_;
  std::vector<uint32_t> free_blocks_;
  std::vector<Claim> claims_;
  std::vector<uint32_t> free_claims_;
  size_t live_count_ = 0;
  std::array<size_t, kTiers> copies_in_tier_{};
};

}  // namespace kvtide::index
