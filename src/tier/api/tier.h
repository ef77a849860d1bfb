// The tier seam: where copies of blocks live outside the engine.
//
// A tier stores bytes in numbered slots. Between prepare and complete a slot is protected: it is neither evicted nor handed out, and a
// stored slot becomes loadable only after complete_store. Which block a slot holds, and who wants it, is the index's knowledge.
//
// Threading: confined to the loop thread. Blocking tiers (disk, pool) answer through a queue; the host tier answers at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"
#include "base/status.h"

namespace kvtide::tier {

using base::SlotId;

struct TierStats {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;      // slots that hold or receive a block, times the slot size
  int64_t peak_bytes = 0;
  int64_t slots = 0;
  int64_t slots_free = 0;
  int64_t leases = 0;          // copies being loaded or stored now
  int64_t corrupt_loads = 0;   // checksum failures: each was a miss and a recompute
};

/// Protects one slot while it lives. Move-only: a lost lease shows in TierStats::leases and never frees somebody else's copy.
class Tier;
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(Tier* tier, SlotId slot) : tier_(tier), slot_(slot) {}
  SlotLease(SlotLease&& other) noexcept : tier_(other.tier_), slot_(other.slot_) { other.tier_ = nullptr; }
  SlotLease& operator=(SlotLease&& other) noexcept;
  ~SlotLease();
  SlotId slot() const { return slot_; }
  explicit operator bool() const { return tier_ != nullptr; }

 private:
  Tier* tier_ = nullptr;
  SlotId slot_;
};

struct StoreTicket {
  SlotLease lease;
  std::span<std::byte> bytes;  // write the block here
};

struct LoadTicket {
  SlotLease lease;
  std::span<const std::byte> bytes;  // verified; valid while the lease lives
};

class Tier {
 public:
  virtual ~Tier() = default;

  /// A free slot to write into, or kResourceExhausted. O(1). Never evicts: the session manager makes room first.
  virtual base::Result<StoreTicket> prepare_store() = 0;
  /// The block is written: it becomes loadable. Ends the lease.
  virtual void complete_store(StoreTicket ticket) = 0;
  /// Gives the slot back unwritten.
  virtual void abort_store(StoreTicket ticket) = 0;

  /// The bytes of a stored slot. kCorrupt when the checksum does not fit (the caller drops the slot and recomputes).
  virtual base::Result<LoadTicket> prepare_load(SlotId slot) = 0;

  /// Forgets a stored slot. REQUIRES: complete and not leased. O(1).
  virtual void drop(SlotId slot) = 0;

  virtual TierStats stats() const = 0;

 private:
  friend class SlotLease;
  virtual void release(SlotId slot) = 0;
};

inline SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  if (this != &other) {
    if (tier_ != nullptr) tier_->release(slot_);
    tier_ = other.tier_;
    slot_ = other.slot_;
    other.tier_ = nullptr;
  }
  return *this;
}

inline SlotLease::~SlotLease() {
  if (tier_ != nullptr) tier_->release(slot_);
}

}  // namespace kvtide::tier
