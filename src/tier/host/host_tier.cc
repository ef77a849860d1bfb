#include "tier/host/host_tier.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/hash.h"

namespace kvtide::tier {
namespace {

constexpr int64_t kAlignBytes = 64;  // a cache line: slots never share one

}  // namespace

base::Result<std::unique_ptr<HostTier>> HostTier::make(int64_t budget_bytes, int64_t block_bytes) {
  KV_CHECK(block_bytes > 0);
  const int64_t stride = (block_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  const int64_t slots = budget_bytes / stride;
  if (slots < 1) {
    return base::error(base::Code::kInvalidArgument, "--host-memory " + std::to_string(budget_bytes) + " holds no block of " + std::to_string(block_bytes) +
                                                         " bytes; give at least that, or 0 for no host tier");
  }
  const int64_t arena_bytes = slots * stride;
  void* arena = mmap(nullptr, static_cast<size_t>(arena_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) {
    return base::error(base::Code::kResourceExhausted, "--host-memory " + std::to_string(budget_bytes) + ": the machine does not give that much memory");
  }
  // Huge pages save TLB misses on copies; where there are none this does nothing.
  madvise(arena, static_cast<size_t>(arena_bytes), MADV_HUGEPAGE);
  return std::unique_ptr<HostTier>(new HostTier(static_cast<std::byte*>(arena), arena_bytes, budget_bytes, block_bytes, stride));
}

HostTier::HostTier(std::byte* arena, int64_t arena_bytes, int64_t budget_bytes, int64_t block_bytes, int64_t stride_bytes)
    : arena_(arena),
      arena_bytes_(arena_bytes),
      budget_bytes_(budget_bytes),
      block_bytes_(block_bytes),
      stride_bytes_(stride_bytes),
      slots_(static_cast<size_t>(arena_bytes / stride_bytes)) {
  free_.reserve(slots_.size());
  for (auto i = static_cast<uint32_t>(slots_.size()); i > 0; --i) free_.push_back(i - 1);
}

HostTier::~HostTier() {
  KV_CHECK(leases_ == 0);
  munmap(arena_, static_cast<size_t>(arena_bytes_));
}

std::span<std::byte> HostTier::bytes(SlotId slot) const {
  return {arena_ + static_cast<int64_t>(slot.value) * stride_bytes_, static_cast<size_t>(block_bytes_)};
}

base::Result<StoreTicket> HostTier::prepare_store() {
  if (free_.empty()) return base::error(base::Code::kResourceExhausted, "the host tier is full");
  const SlotId slot(free_.back());
  free_.pop_back();
  Slot& s = slots_[slot.value];
  s.state = State::kStoring;
  s.leases = 1;
  ++leases_;
  peak_slots_ = std::max(peak_slots_, static_cast<int64_t>(slots_.size() - free_.size()));
  return StoreTicket{SlotLease(this, slot), bytes(slot)};
}

void HostTier::complete_store(StoreTicket ticket) {
  Slot& s = slots_[ticket.lease.slot().value];
  KV_CHECK(s.state == State::kStoring);
  s.checksum = base::checksum(ticket.bytes);
  s.state = State::kStored;
}

// The lease ends with the ticket, and a slot released while still storing goes back to the free ones.
void HostTier::abort_store(StoreTicket ticket) { KV_CHECK(slots_[ticket.lease.slot().value].state == State::kStoring); }

base::Result<LoadTicket> HostTier::prepare_load(SlotId slot) {
  KV_CHECK(slot.value < slots_.size());
  Slot& s = slots_[slot.value];
  KV_CHECK(s.state == State::kStored);
  const std::span<std::byte> stored = bytes(slot);
  if (base::checksum(stored) != s.checksum) {
    ++corrupt_loads_;
    return base::error(base::Code::kCorrupt, "a host block does not match its checksum");
  }
  ++s.leases;
  ++leases_;
  return LoadTicket{SlotLease(this, slot), stored};
}

void HostTier::drop(SlotId slot) {
  KV_CHECK(slot.value < slots_.size() && slots_[slot.value].state == State::kStored && slots_[slot.value].leases == 0);
  free_slot(slot);
}

void HostTier::release(SlotId slot) {
  Slot& s = slots_[slot.value];
  KV_CHECK(s.leases > 0);
  --s.leases;
  --leases_;
  if (s.state == State::kStoring) free_slot(slot);
}

void HostTier::free_slot(SlotId slot) {
  slots_[slot.value].state = State::kFree;
  free_.push_back(slot.value);
}

TierStats HostTier::stats() const {
  TierStats stats;
  stats.budget_bytes = budget_bytes_;
  stats.slots = static_cast<int64_t>(slots_.size());
  stats.slots_free = static_cast<int64_t>(free_.size());
  stats.used_bytes = (stats.slots - stats.slots_free) * block_bytes_;
  stats.peak_bytes = peak_slots_ * block_bytes_;
  stats.leases = leases_;
  stats.corrupt_loads = corrupt_loads_;
  return stats;
}

}  // namespace kvtide::tier
