// Room and movement: victims on the device and in the host tier, write-back, loads.
#include <algorithm>

#include "base/check.h"
#include "session/sam.h"

namespace kvtide::session {

void Sam::emit(Decision d) {
  std::vector<uint64_t> words{trace_hash_,  static_cast<uint64_t>(d.kind),  d.seq.value,
                              d.from.value, static_cast<uint64_t>(d.begin), static_cast<uint64_t>(d.end)};
  for (BlockId b : d.blocks) words.push_back(b.value);
  for (SlotId s : d.slots) words.push_back(s.value);
  trace_hash_ = base::checksum(std::as_bytes(std::span(words)));
  decisions_.push_back(std::move(d));
}

// A copy of `id` left some tier. If it was the last, the reason is remembered and the block may go.
void Sam::copy_gone(BlockId id, index::Loss loss, TimeNs now_ns) {
  const index::Block& block = blocks_.at(id);
  if (!block.copy(Tier::kDevice).present() && !block.copy(Tier::kHost).present()) history_.note(block.key, loss);
  if (block.parent.valid()) host_victims_->note(block.parent, now_ns);
  blocks_.sweep(id);
}

void Sam::cut(SeqId seq, int32_t tokens, std::span<const int32_t> tail, index::Loss loss, TimeNs now_ns) {
  if (seqs_.length(seq) == tokens) return;
  const std::vector<BlockId> gone = seqs_.cut(seq, tokens, tail);
  Decision d{Decision::Kind::kTruncate};
  d.seq = seq;
  d.end = tokens;
  emit(std::move(d));
  for (BlockId id : gone) {
    if (!blocks_.at(id).copy(Tier::kDevice).present()) copy_gone(id, loss, now_ns);
  }
}

int64_t Sam::cells_free() const { return config_.device.device_tokens - seqs_.cells_used() - cells_reserved_; }

// The idle sequence whose last block is given up most willingly. One without a full block goes before all others: it holds next to nothing.
SeqId Sam::pick_idle_victim(SeqId except, TimeNs now_ns) const {
  SeqId best;
  double best_rank = 0;
  seqs_.for_each(Sequence::State::kIdle, [&](SeqId id, const Sequence& seq) {
    if (id == except) return;
    const double rank = seq.path.empty() ? 1e300 : policy_->rank(seq.path.back(), Tier::kDevice, now_ns);
    if (!best.valid() || rank > best_rank) {
      best = id;
      best_rank = rank;
    }
  });
  return best;
}

// Empties one idle sequence, after writing back what is worth it. The sequence is then free; invalid when none is idle.
SeqId Sam::evict_sequence(SeqId except, TimeNs now_ns) {
  const SeqId victim = pick_idle_victim(except, now_ns);
  if (!victim.valid()) return {};
  write_back(victim, 0, now_ns);
  counters_.evicted_device_blocks += static_cast<int64_t>(seqs_.at(victim).path.size());
  cut(victim, 0, {}, index::Loss::kCapacity, now_ns);
  seqs_.set_idle(victim, now_ns);
  return victim;
}

// Whether there would be room if every idle sequence but `except` went. A request that cannot be admitted yet must not empty the device.
bool Sam::room_is_possible(int64_t cells, SeqId except) const {
  std::vector<BlockId> kept;
  int64_t tails = 0;
  auto keep = [&](SeqId, const Sequence& seq) {
    kept.insert(kept.end(), seq.path.begin(), seq.path.end());
    tails += static_cast<int64_t>(seq.tail.size());
  };
  seqs_.for_each(Sequence::State::kBusy, keep);
  if (except.valid() && seqs_.at(except).state == Sequence::State::kIdle) keep(except, seqs_.at(except));
  std::sort(kept.begin(), kept.end());
  const auto unique = std::unique(kept.begin(), kept.end()) - kept.begin();
  return config_.device.device_tokens - cells_reserved_ - unique * config_.device.block_tokens - tails >= cells;
}

bool Sam::make_device_room(int64_t cells, SeqId except, TimeNs now_ns) {
  const int32_t block_tokens = config_.device.block_tokens;
  while (cells_free() < cells && !room_is_possible(cells, except)) {
    // A prefetch is no reason for a request to wait or end: it gives its cells back first.
    if (prefetches_.empty() || !prefetches_.front().seq.valid()) return false;
    end_prefetch(0, now_ns);
  }
  while (cells_free() < cells) {
    const SeqId victim = pick_idle_victim(except, now_ns);
    if (!victim.valid()) return false;
    const Sequence& seq = seqs_.at(victim);
    const int64_t missing = cells - cells_free();
    const auto tail = static_cast<int64_t>(seq.tail.size());
    auto keep = static_cast<int32_t>(seq.path.size());
    if (missing > tail && keep > 0) {
      // A last block that others hold too frees nothing, nor does any block before it: this sequence only repeats what they hold.
      const bool shared = blocks_.at(seq.path.back()).copy(Tier::kDevice).holders > 1;
      keep = shared ? 0 : std::max(0, keep - static_cast<int32_t>((missing - tail + block_tokens - 1) / block_tokens));
      write_back(victim, keep, now_ns);
      counters_.evicted_device_blocks += static_cast<int64_t>(seq.path.size()) - keep;
    }
    const TimeNs last_used_ns = seq.last_used_ns;
    cut(victim, keep * block_tokens, {}, index::Loss::kCapacity, now_ns);
    seqs_.set_idle(victim, last_used_ns);
  }
  return true;
}

// Room for one block in the host tier: a free place, or that of a copy worth no more than the incoming block.
bool Sam::make_host_room(BlockId incoming, TimeNs now_ns) {
  if (host_blocks_free() > 0) return true;
  const auto victim = host_victims_->best(now_ns);
  if (!victim || (!victim->rank.spare && victim->rank.value < policy_->rank(incoming, Tier::kHost, now_ns))) return false;
  ++counters_.evicted_host_blocks;
  drop_host_copy(victim->block, index::Loss::kCapacity, now_ns);
  return true;
}

void Sam::drop_host_copy(BlockId id, index::Loss loss, TimeNs now_ns) {
  const SlotId slot = blocks_.at(id).copy(Tier::kHost).slot;
  unwanted_.erase(id);
  blocks_.remove_copy(id, Tier::kHost);
  if (slot.valid()) {
    Decision d{Decision::Kind::kDropHost};
    d.slots.push_back(slot);
    emit(std::move(d));
  }
  copy_gone(id, loss, now_ns);
}

int32_t Sam::write_back(SeqId seq_id, int32_t from, TimeNs now_ns) {
  if (config_.host_blocks == 0 || !config_.device.reuse) return 0;
  const Sequence& seq = seqs_.at(seq_id);
  Decision run{Decision::Kind::kCopyOut};
  auto flush = [&] {
    if (!run.blocks.empty()) emit(std::move(run));
    run = Decision{Decision::Kind::kCopyOut};
  };
  const auto end = static_cast<int32_t>(seq.path.size());
  int32_t at = std::max(from, 0);
  std::vector<BlockId> pinned;
  for (; at < end; ++at) {
    const BlockId block = seq.path[static_cast<size_t>(at)];
    if (copy_failed(block)) break;  // it is there for a lease only
    if (blocks_.at(block).copy(Tier::kHost).present()) {
      flush();
      blocks_.lease(block, Tier::kHost);
      pinned.push_back(block);
      continue;
    }
    if (!make_host_room(block, now_ns)) break;
    if (run.blocks.empty()) {
      run.seq = seq_id;
      run.begin = at;
    }
    run.blocks.push_back(block);
    begin_copy_out(block);
  }
  flush();
  for (BlockId block : pinned) blocks_.unlease(block, Tier::kHost);
  for (BlockId block : pinned) host_victims_->note(block, now_ns);
  return at;
}

// A block on its way out counts as a host copy at once: it takes room, keeps the block alive when the device copy goes, and is leased, so
// that it is no victim. Its slot is known when the loop answers.
void Sam::begin_copy_out(BlockId block) {
  blocks_.add_copy(block, Tier::kHost, {});
  blocks_.lease(block, Tier::kHost);
  copying_out_.insert(block);
}

// Whether the copy out of `id` failed while somebody leased it. Such a copy holds nothing and goes with its last lease.
bool Sam::copy_failed(BlockId id) const {
  const index::Copy& copy = blocks_.at(id).copy(Tier::kHost);
  return copy.present() && !copy.slot.valid() && !copying_out_.contains(id);
}

void Sam::unlease_host(BlockId id, TimeNs now_ns) {
  blocks_.unlease(id, Tier::kHost);
  if (blocks_.at(id).copy(Tier::kHost).leases == 0 && copy_failed(id)) {
    drop_host_copy(id, index::Loss::kFailedLoad, now_ns);
    return;
  }
  host_victims_->note(id, now_ns);
  drop_unwanted(id, now_ns);
}

// An evict found copies under way or leased: they go as soon as they can, deepest first, unless somebody claimed them since.
void Sam::drop_unwanted(BlockId id, TimeNs now_ns) {
  while (unwanted_.contains(id)) {
    const index::Block& block = blocks_.at(id);
    const index::Copy& copy = block.copy(Tier::kHost);
    if (!blocks_.claimed(id) && (copy.leases > 0 || copy.children > 0)) return;
    unwanted_.erase(id);
    if (blocks_.claimed(id)) return;
    const BlockId parent = block.parent;
    drop_host_copy(id, index::Loss::kHint, now_ns);
    id = parent;
  }
}

void Sam::take_block(SeqId seq, BlockId block) {
  if (!config_.device.lanes && blocks_.at(block).copy(Tier::kDevice).present()) {
    const auto depth = static_cast<int32_t>(blocks_.at(block).depth);
    Decision d{Decision::Kind::kDedup};
    d.seq = seq;
    d.from = seqs_.find_holder(block, depth, seq);
    d.begin = depth * config_.device.block_tokens;
    d.end = d.begin + config_.device.block_tokens;
    emit(std::move(d));
    ++counters_.dedup_blocks;
  }
  seqs_.push_block(seq, block);
}

void Sam::copied_out(BlockId block, SlotId slot, TimeNs now_ns) {
  ++counters_.written_back_blocks;
  blocks_.set_slot(block, Tier::kHost, slot);
  copying_out_.erase(block);
  note_copied(block, now_ns);
  unlease_host(block, now_ns);
}

void Sam::copy_out_failed(BlockId block, TimeNs now_ns) {
  ++counters_.failed_copies_out;
  copying_out_.erase(block);
  note_copied(block, now_ns);
  // A request that planned to load it finds a copy without a slot and recomputes; with its lease the copy goes.
  unlease_host(block, now_ns);
}

// Early write-back uses only room that nobody wants: copying pays when memory is short later, and evicting for it now would not.
bool Sam::next_write_back(int32_t blocks_max, TimeNs) {
  if (config_.host_blocks == 0 || !config_.device.reuse || blocks_max <= 0) return false;
  const int64_t spare = host_blocks_free();
  if (spare <= 0) return false;
  Decision run{Decision::Kind::kCopyOut};
  auto scan = [&](SeqId id, const Sequence& seq) {
    if (!run.blocks.empty()) return;
    int32_t at = seq.written_blocks;
    for (; at < static_cast<int32_t>(seq.path.size()); ++at) {
      const BlockId block = seq.path[static_cast<size_t>(at)];
      const bool in_host = blocks_.at(block).copy(Tier::kHost).present();
      if (in_host && run.blocks.empty()) continue;
      if (in_host || static_cast<int64_t>(run.blocks.size()) == std::min<int64_t>(blocks_max, spare)) break;
      if (run.blocks.empty()) {
        run.seq = id;
        run.begin = at;
      }
      run.blocks.push_back(block);
    }
    seqs_.set_written(id, run.blocks.empty() ? at : run.begin);
  };
  seqs_.for_each(Sequence::State::kIdle, scan);
  if (run.blocks.empty() && !config_.device.lanes) seqs_.for_each(Sequence::State::kBusy, scan);
  if (run.blocks.empty()) return false;
  for (BlockId block : run.blocks) begin_copy_out(block);
  emit(std::move(run));
  return true;
}

}  // namespace kvtide::session
