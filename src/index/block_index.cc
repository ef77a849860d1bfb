#include "index/block_index.h"

#include <cstring>

#include "base/check.h"

namespace kvtide::index {
namespace {

constexpr uint32_t kEmpty = UINT32_MAX;
constexpr size_t kTableMin = 1024;

size_t key_hash(const BlockKey& key) {
  uint64_t head;
  std::memcpy(&head, key.data(), sizeof(head));
  return head;
}

}  // namespace

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDevice: return "device";
    case Tier::kHost: return "host";
    case Tier::kDisk: return "disk";
    case Tier::kPool: return "pool";
  }
  return "unknown";
}

BlockIndex::BlockIndex() : table_(kTableMin, kEmpty) {}

size_t BlockIndex::bucket(const BlockKey& key) const { return key_hash(key) & (table_.size() - 1); }

BlockId BlockIndex::find(const BlockKey& key) const {
  for (size_t i = bucket(key);; i = (i + 1) & (table_.size() - 1)) {
    if (table_[i] == kEmpty) return {};
    if (blocks_[table_[i]].key == key) return BlockId(table_[i]);
  }
}

BlockId BlockIndex::ensure(BlockId parent, const BlockKey& key) {
  if (BlockId known = find(key); known.valid()) return known;
  if ((live_count_ + 1) * 2 > table_.size()) grow();
  uint32_t id;
  if (free_blocks_.empty()) {
    id = static_cast<uint32_t>(blocks_.size());
    blocks_.emplace_back();
    live_.push_back(0);
  } else {
    id = free_blocks_.back();
    free_blocks_.pop_back();
  }
  const uint32_t epoch = blocks_[id].epoch + 1;
  Block& block = blocks_[id];
  block = Block{};
  block.key = key;
  block.parent = parent;
  block.epoch = epoch;
  if (parent.valid()) {
    KV_CHECK(live_[parent.value]);
    block.depth = blocks_[parent.value].depth + 1;
    ++blocks_[parent.value].children;
  }
  live_[id] = 1;
  ++live_count_;
  size_t i = bucket(key);
  while (table_[i] != kEmpty) i = (i + 1) & (table_.size() - 1);
  table_[i] = id;
  return BlockId(id);
}

void BlockIndex::grow() {
  std::vector<uint32_t> old(table_.size() * 2, kEmpty);
  old.swap(table_);
  for (uint32_t id : old) {
    if (id == kEmpty) continue;
    size_t i = bucket(blocks_[id].key);
    while (table_[i] != kEmpty) i = (i + 1) & (table_.size() - 1);
    table_[i] = id;
  }
}

// Deletion without tombstones: entries behind the hole that may not stay there are moved into it (Knuth, TAOCP 6.4, algorithm R).
void BlockIndex::erase_from_table(BlockId id) {
  const size_t mask = table_.size() - 1;
  size_t hole = bucket(blocks_[id.value].key);
  while (table_[hole] != id.value) hole = (hole + 1) & mask;
  for (size_t i = (hole + 1) & mask; table_[i] != kEmpty; i = (i + 1) & mask) {
    const size_t home = bucket(blocks_[table_[i]].key);
    const bool may_move = ((i - home) & mask) >= ((i - hole) & mask);
    if (!may_move) continue;
    table_[hole] = table_[i];
    hole = i;
  }
  table_[hole] = kEmpty;
}

void BlockIndex::add_copy(BlockId id, Tier tier, SlotId slot) {
  Block& block = blocks_[id.value];
  Copy& copy = block.copy(tier);
  if (!copy.present()) {
    ++copies_in_tier_[static_cast<size_t>(tier)];
    if (block.parent.valid()) ++blocks_[block.parent.value].copy(tier).children;
  }
  KV_CHECK(tier == Tier::kDevice || !copy.present());
  ++copy.holders;
  copy.slot = slot;
}

void BlockIndex::remove_copy(BlockId id, Tier tier) {
  Block& block = blocks_[id.value];
  Copy& copy = block.copy(tier);
  KV_CHECK(copy.present());
  --copy.holders;
  if (copy.present()) return;
  KV_CHECK(copy.leases == 0);
  copy.slot = {};
  --copies_in_tier_[static_cast<size_t>(tier)];
  if (block.parent.valid()) --blocks_[block.parent.value].copy(tier).children;
}

void BlockIndex::lease(BlockId id, Tier tier) {
  KV_CHECK(at(id).copy(tier).present());
  ++blocks_[id.value].copy(tier).leases;
}

void BlockIndex::unlease(BlockId id, Tier tier) {
  KV_CHECK(at(id).copy(tier).leases > 0);
  --blocks_[id.value].copy(tier).leases;
}

void BlockIndex::touch(BlockId id, base::TimeNs now_ns, bool reused) {
  Block& block = blocks_[id.value];
  block.last_used_ns = now_ns;
  if (reused && block.uses < UINT32_MAX) ++block.uses;
}

void BlockIndex::claim(BlockId id, BranchId branch) {
  if (claimed_by(id, branch)) return;
  uint32_t c;
  if (free_claims_.empty()) {
    c = static_cast<uint32_t>(claims_.size());
    claims_.emplace_back();
  } else {
    c = free_claims_.back();
    free_claims_.pop_back();
  }
  claims_[c] = {branch, at(id).claims};
  blocks_[id.value].claims = c;
}

bool BlockIndex::release(BlockId id, BranchId branch) {
  for (uint32_t* link = &blocks_[id.value].claims; *link != Block::kNoClaim; link = &claims_[*link].next) {
    if (claims_[*link].branch != branch) continue;
    const uint32_t c = *link;
    *link = claims_[c].next;
    free_claims_.push_back(c);
    return true;
  }
  return false;
}

bool BlockIndex::claimed_by(BlockId id, BranchId branch) const {
  bool found = false;
  for_each_claim(id, [&](BranchId b) { found = found || b == branch; });
  return found;
}

bool BlockIndex::claimed_by_other(BlockId id, BranchId branch) const {
  bool found = false;
  for_each_claim(id, [&](BranchId b) { found = found || b != branch; });
  return found;
}

void BlockIndex::sweep(BlockId id) {
  while (id.valid() && live_[id.value]) {
    const Block& block = at(id);
    bool held = block.children > 0 || block.claims != Block::kNoClaim;
    for (const Copy& copy : block.copies) held = held || copy.present();
    if (held) return;
    const BlockId parent = block.parent;
    erase_from_table(id);
    live_[id.value] = 0;
    --live_count_;
    free_blocks_.push_back(id.value);
    if (parent.valid()) --blocks_[parent.value].children;
    id = parent;
  }
}

size_t BlockIndex::memory_bytes() const {
  return table_.capacity() * sizeof(uint32_t) + blocks_.capacity() * sizeof(Block) + live_.capacity() + claims_.capacity() * sizeof(Claim) +
         (free_blocks_.capacity() + free_claims_.capacity()) * sizeof(uint32_t);
}

void BlockIndex::check_invariants() const {
  std::vector<uint32_t> children(blocks_.size());
  std::array<std::vector<uint32_t>, kTiers> tier_children;
  for (auto& counts : tier_children) counts.resize(blocks_.size());
  std::array<size_t, kTiers> copies{};
  size_t live = 0;
  for_each([&](BlockId id) {
    const Block& block = at(id);
    ++live;
    KV_CHECK(find(block.key) == id);
    KV_CHECK(block.depth == (block.parent.valid() ? at(block.parent).depth + 1 : 0));
    if (block.parent.valid()) {
      KV_CHECK(live_[block.parent.value]);
      ++children[block.parent.value];
    }
    for (size_t t = 0; t < kTiers; ++t) {
      if (!block.copies[t].present()) continue;
      ++copies[t];
      if (block.parent.valid()) ++tier_children[t][block.parent.value];
    }
  });
  KV_CHECK(live == live_count_);
  KV_CHECK(copies == copies_in_tier_);
  for_each([&](BlockId id) {
    KV_CHECK(at(id).children == children[id.value]);
    for (size_t t = 0; t < kTiers; ++t) KV_CHECK(at(id).copies[t].children == tier_children[t][id.value]);
  });
}

}  // namespace kvtide::index
