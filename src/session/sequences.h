// What each engine sequence holds: a path of blocks and a tail of tokens that do not fill a block yet.
//
// This is the core's mirror of the device; the engine is told to follow. Cells are counted as the engine counts them: in the unified
// layout a block held by several sequences counts once, in lanes each holder counts.
//
// Threading: confined to the loop. Cost: O(blocks touched); searches O(sequences).
#pragma once

#include <span>
#include <vector>

#include "session/types.h"

namespace kvtide::session {

struct Sequence {
  enum class State : uint8_t { kFree, kIdle, kBusy };
  State state = State::kFree;
  std::vector<BlockId> path;
  std::vector<int32_t> tail;
  BranchId owner;              // the branch it was last used for
  TimeNs last_used_ns = 0;
  int32_t written_blocks = 0;  // path[0, written_blocks) was seen to have host copies
};

class Sequences {
 public:
  Sequences(const DeviceShape& shape, index::BlockIndex& blocks);

  const Sequence& at(SeqId id) const { return seqs_[id.value]; }
  int32_t count() const { return static_cast<int32_t>(seqs_.size()); }
  int32_t length(SeqId id) const;

  /// A free sequence, or an invalid id.
  SeqId find_free() const;

  void set_busy(SeqId id, BranchId owner);
  /// Not in use now; free when it holds nothing.
  void set_idle(SeqId id, TimeNs now_ns);
  /// No sequence remembers `branch` as its owner any more.
  void disown(BranchId branch);
  void set_written(SeqId id, int32_t blocks) { seqs_[id.value].written_blocks = blocks; }

  /// Appends a full block. REQUIRES: the tail is empty.
  void push_block(SeqId id, BlockId block);
  void push_tail(SeqId id, int32_t token) { seqs_[id.value].tail.push_back(token); ++tail_cells_; }
  /// The tail has become `block`.
  void close_tail(SeqId id, BlockId block);

  /// Keeps the first `tokens` tokens, of which those behind the last full block are `tail` (a slice of the caller's prompt).
  /// Blocks that left are returned, deepest first; their device copy was removed for this holder.
  std::vector<BlockId> cut(SeqId id, int32_t tokens, std::span<const int32_t> tail);

  int64_t cells_used() const;
  int32_t busy_count() const;

  template <typename F>
  void for_each(Sequence::State state, F&& f) const {
    for (uint32_t i = 0; i < seqs_.size(); ++i) {
      if (seqs_[i].state == state) f(SeqId(i), seqs_[i]);
    }
  }

  /// A sequence whose path has `block` at `depth`, or an invalid id. A busy one is preferred: it will not be evicted.
  SeqId find_holder(BlockId block, int32_t depth, SeqId except) const;

  void check_invariants() const;

 private:
  const DeviceShape shape_;
  index::BlockIndex& blocks_;
  std::vector<Sequence> seqs_;
  int64_t tail_cells_ = 0;
  int64_t held_blocks_ = 0;  // over all sequences, shared ones counted each time
};

}  // namespace kvtide::session
