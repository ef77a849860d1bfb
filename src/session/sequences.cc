#include "session/sequences.h"

#include "base/check.h"

namespace kvtide::session {

Sequences::Sequences(const DeviceShape& shape, index::BlockIndex& blocks) : shape_(shape), blocks_(blocks), seqs_(static_cast<size_t>(shape.seqs)) {
  KV_CHECK(shape.seqs > 0 && shape.block_tokens > 0);
}

int32_t Sequences::length(SeqId id) const {
  const Sequence& seq = at(id);
  return static_cast<int32_t>(seq.path.size()) * shape_.block_tokens + static_cast<int32_t>(seq.tail.size());
}

SeqId Sequences::find_free() const {
  for (uint32_t i = 0; i < seqs_.size(); ++i) {
    if (seqs_[i].state == Sequence::State::kFree) return SeqId(i);
  }
  return {};
}

void Sequences::set_busy(SeqId id, BranchId owner) {
  Sequence& seq = seqs_[id.value];
  KV_CHECK(seq.state != Sequence::State::kBusy);
  seq.state = Sequence::State::kBusy;
  seq.owner = owner;
}

void Sequences::set_idle(SeqId id, TimeNs now_ns) {
  Sequence& seq = seqs_[id.value];
  seq.last_used_ns = now_ns;
  if (length(id) > 0) {
    seq.state = Sequence::State::kIdle;
    return;
  }
  seq.state = Sequence::State::kFree;
  seq.owner = {};
}

void Sequences::disown(BranchId branch) {
  for (Sequence& seq : seqs_) {
    if (seq.owner == branch) seq.owner = {};
  }
}

void Sequences::push_block(SeqId id, BlockId block) {
  Sequence& seq = seqs_[id.value];
  KV_CHECK(seq.tail.empty());
  KV_CHECK(blocks_.at(block).depth == seq.path.size());
  seq.path.push_back(block);
  blocks_.add_copy(block, Tier::kDevice, {});
  ++held_blocks_;
}

void Sequences::close_tail(SeqId id, BlockId block) {
  Sequence& seq = seqs_[id.value];
  KV_CHECK(static_cast<int32_t>(seq.tail.size()) == shape_.block_tokens);
  tail_cells_ -= static_cast<int64_t>(seq.tail.size());
  seq.tail.clear();
  push_block(id, block);
}

std::vector<BlockId> Sequences::cut(SeqId id, int32_t tokens, std::span<const int32_t> tail) {
  Sequence& seq = seqs_[id.value];
  KV_CHECK(tokens <= length(id));
  const auto keep = static_cast<size_t>(tokens / shape_.block_tokens);
  const auto keep_tail = static_cast<size_t>(tokens % shape_.block_tokens);
  KV_CHECK(keep_tail == tail.size());
  tail_cells_ += static_cast<int64_t>(keep_tail) - static_cast<int64_t>(seq.tail.size());
  seq.tail.assign(tail.begin(), tail.end());
  std::vector<BlockId> gone;
  while (seq.path.size() > keep) {
    const BlockId block = seq.path.back();
    seq.path.pop_back();
    blocks_.remove_copy(block, Tier::kDevice);
    --held_blocks_;
    gone.push_back(block);
  }
  seq.written_blocks = std::min(seq.written_blocks, static_cast<int32_t>(keep));
  return gone;
}

int64_t Sequences::cells_used() const {
  const int64_t blocks = shape_.lanes ? held_blocks_ : static_cast<int64_t>(blocks_.copies_in(Tier::kDevice));
  return blocks * shape_.block_tokens + tail_cells_;
}

int32_t Sequences::busy_count() const {
  int32_t busy = 0;
  for_each(Sequence::State::kBusy, [&](SeqId, const Sequence&) { ++busy; });
  return busy;
}

SeqId Sequences::find_holder(BlockId block, int32_t depth, SeqId except) const {
  SeqId found;
  for (uint32_t i = 0; i < seqs_.size(); ++i) {
    const Sequence& seq = seqs_[i];
    if (SeqId(i) == except || seq.path.size() <= static_cast<size_t>(depth) || seq.path[static_cast<size_t>(depth)] != block) continue;
    if (seq.state == Sequence::State::kBusy) return SeqId(i);
    found = SeqId(i);
  }
  return found;
}

void Sequences::check_invariants() const {
  int64_t held = 0;
  int64_t tails = 0;
  for (uint32_t i = 0; i < seqs_.size(); ++i) {
    const Sequence& seq = seqs_[i];
    held += static_cast<int64_t>(seq.path.size());
    tails += static_cast<int64_t>(seq.tail.size());
    KV_CHECK(length(SeqId(i)) <= shape_.seq_tokens_max);
    if (seq.state == Sequence::State::kFree) KV_CHECK(length(SeqId(i)) == 0);
    for (size_t d = 0; d < seq.path.size(); ++d) {
      const index::Block& block = blocks_.at(seq.path[d]);
      KV_CHECK(block.depth == d && block.copy(Tier::kDevice).present());
      KV_CHECK(d == 0 ? !block.parent.valid() : block.parent == seq.path[d - 1]);
    }
  }
  KV_CHECK(held == held_blocks_ && tails == tail_cells_);
  KV_CHECK(cells_used() <= shape_.device_tokens);
}

}  // namespace kvtide::session
