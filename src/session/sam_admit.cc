// Admission: which sequence serves a request, what it reuses in place, what is loaded, what is recomputed.
#include <algorithm>

#include "base/check.h"
#include "session/sam.h"

namespace kvtide::session {

Sam::Lookup Sam::look_up(const Request& r) const {
  Lookup found;
  found.limit = (static_cast<int32_t>(r.arrival.tokens.size()) - 1) / config_.device.block_tokens;
  bool on_device = true;
  for (const BlockKey& key : r.arrival.keys) {
    const BlockId id = blocks_.find(key);
    if (!id.valid()) break;
    const index::Block& block = blocks_.at(id);
    on_device = on_device && block.copy(Tier::kDevice).present();
    if (!block.copy(Tier::kDevice).present() && !block.copy(Tier::kHost).present()) break;
    found.known.push_back(id);
    if (on_device) ++found.device;
  }
  return found;
}

Sam::Estimate Sam::estimate(RequestId id) const {
  const Request& r = request(id);
  const auto tokens = static_cast<int32_t>(r.arrival.tokens.size());
  Estimate out;
  if (config_.device.reuse) {
    const int32_t block_tokens = config_.device.block_tokens;
    const Lookup found = look_up(r);
    const int32_t known = std::min(static_cast<int32_t>(found.known.size()), found.limit);
    out.device = std::min(found.device, known) * block_tokens;
    const int32_t host = known * block_tokens - out.device;
    if (costs_.load_is_faster(int64_t{host / block_tokens} * config_.block_bytes, host, out.device)) out.host = host;
  }
  out.recompute = tokens - out.device - out.host;
  return out;
}

// Blocks are compared by key, the tail by token.
int32_t Sam::common_tokens(const Request& r, const Sequence& seq) const {
  size_t n = 0;
  while (n < seq.path.size() && n < r.arrival.keys.size() && blocks_.at(seq.path[n]).key == r.arrival.keys[n]) ++n;
  const auto block_tokens = static_cast<size_t>(config_.device.block_tokens);
  auto common = n * block_tokens;
  // Without a block in common nothing says whose tokens the tail holds: another tenant's, or another salt's.
  if (n > 0 && n == seq.path.size()) {
    for (size_t i = 0; i < seq.tail.size() && common < r.arrival.tokens.size() && seq.tail[i] == r.arrival.tokens[common]; ++i) ++common;
  }
  return static_cast<int32_t>(std::min(common, r.arrival.tokens.size() - 1));
}

// Whether nobody but this request's branch wants what `seq` holds behind `common`.
bool Sam::remainder_is_free(const Request& r, const Sequence& seq, int32_t common) const {
  for (auto i = static_cast<size_t>(common / config_.device.block_tokens); i < seq.path.size(); ++i) {
    if (blocks_.claimed_by_other(seq.path[i], r.branch)) return false;
  }
  return true;
}

// The idle sequence that can simply go on: it shares the most with the prompt, and the rest of it is nobody else's.
Sam::Candidate Sam::best_continuation(const Request& r) const {
  Candidate best;
  seqs_.for_each(Sequence::State::kIdle, [&](SeqId id, const Sequence& seq) {
    const int32_t common = common_tokens(r, seq);
    if (common > best.common && remainder_is_free(r, seq, common)) best = {id, common};
  });
  return best;
}

// Somebody is computing a prefix that this prompt shares and that is not there yet: wait for it instead of computing it twice. Bounded by
// the other's prefill; at least four blocks must be at stake.
bool Sam::sibling_computes_prefix(const Request& r, const Lookup& found) const {
  constexpr size_t kBlocksAtStake = 4;
  if (config_.device.lanes && config_.host_blocks == 0) return false;  // lanes share through the host tier only
  const size_t have = found.known.size();
  for (const auto& [id, other] : requests_) {
    if (!other.seq.valid() || id == r.arrival.id || other.keys_prompt < have + kBlocksAtStake) continue;
    const size_t done = seqs_.at(other.seq).path.size();
    const size_t common_goal = std::min(other.keys_prompt, r.keys_prompt);
    if (done >= common_goal || common_goal < have + kBlocksAtStake) continue;
    // Keys chain: equal at a position means equal up to it.
    size_t shared = have + kBlocksAtStake;
    if (other.arrival.keys[shared - 1] != r.arrival.keys[shared - 1]) continue;
    while (shared < common_goal && other.arrival.keys[shared] == r.arrival.keys[shared]) ++shared;
    if (done < shared) return true;
  }
  return false;
}

Sam::Admission Sam::admit(RequestId id, TimeNs now_ns) {
  Request& r = request(id);
  KV_CHECK(!r.seq.valid());
  if (!config_.device.reuse) return admit_without_reuse(r, now_ns);
  // After a preemption the prompt has grown by what was generated: give its new full blocks their keys.
  const auto block_tokens = static_cast<size_t>(config_.device.block_tokens);
  while ((r.arrival.keys.size() + 1) * block_tokens <= r.arrival.tokens.size()) {
    const size_t n = r.arrival.keys.size();
    r.arrival.keys.push_back(index::child_key(n == 0 ? r.arrival.root : r.arrival.keys[n - 1],
                                              std::span(r.arrival.tokens).subspan(n * block_tokens, block_tokens)));
  }
  r.keys_prompt = r.arrival.keys.size();
  const Lookup found = look_up(r);
  // What this request is about to reuse must not be the victim of the room that is made for it.
  for (BlockId block : found.known) blocks_.touch(block, now_ns, false);
  if (sibling_computes_prefix(r, found)) return Admission::kWaitSibling;
  // A lane cannot be shared: siblings of a busy one get its blocks through the host tier.
  const Admission result = config_.device.lanes ? admit_lane(r, found, now_ns) : admit_unified(r, found, now_ns);
  if (result == Admission::kWait) return result;
  record_reuse(r);
  for (BlockId block : seqs_.at(r.seq).path) blocks_.touch(block, now_ns, true);
  for (BlockId block : r.loads) blocks_.touch(block, now_ns, true);
  return result;
}

Sam::Admission Sam::admit_without_reuse(Request& r, TimeNs now_ns) {
  SeqId seq = seqs_.find_free();
  if (!seq.valid()) seq = evict_sequence({}, now_ns);
  if (!seq.valid()) return Admission::kWait;
  seqs_.set_busy(seq, r.branch);
  r.seq = seq;
  if (!config_.device.lanes && !reserve(r.arrival.id, static_cast<int32_t>(r.arrival.tokens.size()), now_ns)) {
    release_sequence(r, now_ns);
    return Admission::kWait;
  }
  if (!r.measured) r.reuse.compulsory = r.reuse.prompt;
  r.measured = true;
  return Admission::kAdmitted;
}

void Sam::take_over(Request& r, SeqId seq, int32_t tokens, TimeNs now_ns) {
  const int32_t block_tokens = config_.device.block_tokens;
  const auto at = static_cast<size_t>(tokens / block_tokens);
  const std::vector<BlockId>& path = seqs_.at(seq).path;
  // Part of a block that others hold too counts as cells of its own from now on: without room for them it is not kept.
  const bool splits_shared = !config_.device.lanes && at < path.size() && blocks_.at(path[at]).copy(Tier::kDevice).holders > 1;
  if (splits_shared && cells_free() < tokens % block_tokens) tokens -= tokens % block_tokens;
  const auto tail = static_cast<size_t>(tokens % block_tokens);
  const auto begin = static_cast<size_t>(tokens - tokens % block_tokens);
  if (seqs_.at(seq).state != Sequence::State::kBusy) seqs_.set_busy(seq, r.branch);
  cut(seq, tokens, std::span(r.arrival.tokens).subspan(begin, tail), index::Loss::kSuperseded, now_ns);
  r.seq = seq;
}

Sam::Admission Sam::admit_lane(Request& r, const Lookup& found, TimeNs now_ns) {
  if (const Candidate on = best_continuation(r); on.seq.valid()) {
    // What it leaves behind is nobody's claim, but still the cheapest thing to keep if the host tier has room.
    if (on.common < seqs_.length(on.seq)) write_back(on.seq, on.common / config_.device.block_tokens, now_ns);
    take_over(r, on.seq, on.common, now_ns);
    plan_loads(r, found, now_ns);
    return Admission::kAdmitted;
  }
  SeqId lane = seqs_.find_free();
  // Blocks that are only on another lane reach this one through the host tier; they must be there before that lane may be evicted.
  SeqId donor;
  if (config_.host_blocks > 0 && found.device > 0) {
    donor = seqs_.find_holder(found.known[static_cast<size_t>(found.device - 1)], found.device - 1, {});
  }
  if (donor.valid()) write_back(donor, 0, now_ns);
  if (!lane.valid()) lane = evict_sequence({}, now_ns);
  if (!lane.valid()) return Admission::kWait;
  seqs_.set_busy(lane, r.branch);
  r.seq = lane;
  plan_loads(r, found, now_ns);
  return Admission::kAdmitted;
}

// Going on in place cuts what the prompt no longer has. A long piece of it may be wanted again (an edit taken back, a retry): while another
// sequence is free it stays, first to go or not as the policy says.
bool Sam::leaves_much_behind(const Candidate& on) const {
  constexpr int32_t kBlocksMuch = 4;
  return seqs_.length(on.seq) - on.common >= kBlocksMuch * config_.device.block_tokens && seqs_.find_free().valid();
}

Sam::Admission Sam::admit_unified(Request& r, const Lookup& found, TimeNs now_ns) {
  const int32_t block_tokens = config_.device.block_tokens;
  const int32_t shareable = std::min(found.device, found.limit);
  const Candidate on = best_continuation(r);
  if (on.seq.valid() && on.common >= shareable * block_tokens && !leaves_much_behind(on)) {
    take_over(r, on.seq, on.common, now_ns);
  } else {
    SeqId donor;
    if (shareable > 0) donor = seqs_.find_holder(found.known[static_cast<size_t>(shareable - 1)], shareable - 1, {});
    SeqId seq = seqs_.find_free();
    if (!seq.valid()) seq = evict_sequence(donor, now_ns);
    if (!seq.valid() && donor.valid() && seqs_.at(donor).state == Sequence::State::kIdle) {
      // The only idle sequence is the one to share from: become it.
      write_back(donor, shareable, now_ns);
      take_over(r, donor, shareable * block_tokens, now_ns);
    } else if (!seq.valid()) {
      return Admission::kWait;
    } else {
      seqs_.set_busy(seq, r.branch);
      r.seq = seq;
      if (donor.valid()) {
        Decision d{Decision::Kind::kShare};
        d.seq = seq;
        d.from = donor;
        d.end = shareable * block_tokens;
        emit(std::move(d));
        for (int32_t i = 0; i < shareable; ++i) seqs_.push_block(seq, found.known[static_cast<size_t>(i)]);
      }
    }
  }
  const int32_t rest = static_cast<int32_t>(r.arrival.tokens.size()) - seqs_.length(r.seq);
  const int32_t headroom = std::min({r.arrival.max_new_tokens, block_tokens, config_.device.seq_tokens_max - static_cast<int32_t>(r.arrival.tokens.size())});
  const int32_t need = rest + std::max(headroom, 0);
  if (!make_device_room(need, r.seq, now_ns)) {
    release_sequence(r, now_ns);
    return Admission::kWait;
  }
  r.reserved = need;
  cells_reserved_ += need;
  plan_loads(r, found, now_ns);
  return Admission::kAdmitted;
}

// What follows the sequence's present blocks and has a host copy is loaded, unless computing it is predicted to be faster.
void Sam::plan_loads(Request& r, const Lookup& found, TimeNs now_ns) {
  const int32_t block_tokens = config_.device.block_tokens;
  const auto first = seqs_.at(r.seq).path.size();
  const auto limit = std::min(found.known.size(), static_cast<size_t>(found.limit));
  // Room made above may have taken host copies that were known a moment ago: look at each again, by key.
  for (size_t i = first; i < limit; ++i) {
    const BlockId id = blocks_.find(r.arrival.keys[i]);
    if (!id.valid() || !blocks_.at(id).copy(Tier::kHost).present()) break;
    r.loads.push_back(id);
  }
  if (r.loads.empty()) return;
  const auto blocks = static_cast<int64_t>(r.loads.size());
  if (!costs_.load_is_faster(blocks * config_.block_bytes, blocks * block_tokens, static_cast<int64_t>(first) * block_tokens)) {
    r.loads.clear();
    r.reuse.miss = Miss::kSlowerThanRecompute;
    return;
  }
  // A load appends whole blocks: a tail in the way is dropped, its tokens are in the first loaded block.
  const auto aligned = static_cast<int32_t>(first) * block_tokens;
  const int32_t dropped = config_.device.lanes ? 0 : seqs_.length(r.seq) - aligned;
  cut(r.seq, aligned, {}, index::Loss::kNone, now_ns);
  r.reserved += dropped;
  cells_reserved_ += dropped;
  for (BlockId id : r.loads) blocks_.lease(id, Tier::kHost);
}

void Sam::record_reuse(Request& r) {
  if (r.measured) return;
  r.measured = true;
  const int32_t block_tokens = config_.device.block_tokens;
  Reuse& out = r.reuse;
  const bool other_salt = r.keys_prompt > 0 && first_blocks_.seen_under_other_root(
                                                   r.arrival.tenant, std::span(r.arrival.tokens).first(static_cast<size_t>(block_tokens)), r.arrival.root);
  out.device = seqs_.length(r.seq);
  const auto planned = out.device + static_cast<int32_t>(r.loads.size()) * block_tokens;
  auto seen = static_cast<size_t>(planned / block_tokens);  // what is reused was seen, of course
  while (seen < r.keys_prompt && history_.seen(r.arrival.keys[seen])) ++seen;
  out.compulsory = std::min(out.prompt - planned, out.prompt - static_cast<int32_t>(seen) * block_tokens);
  out.compulsory = std::max(out.compulsory, 0);
  const auto next = static_cast<size_t>(planned / block_tokens);
  if (next >= r.keys_prompt || out.prompt - planned <= block_tokens) return;  // only what is new is computed
  out.miss_token = planned;
  if (out.miss != Miss::kNone) return;
  if (next < seen) {
    out.miss = Miss::kEvicted;
    out.loss = history_.loss(r.arrival.keys[next]);
    return;
  }
  if (next == 0 && seen == 0 && other_salt) {
    out.miss = Miss::kOtherSalt;
    return;
  }
  const size_t frontier = r.branch.valid() ? frontier_blocks(sessions_.branch(r.branch)) : 0;
  if (next < frontier) out.miss = Miss::kFirstDifference;
  if (frontier == 0) out.miss = Miss::kNeverStored;
}

bool Sam::next_load(RequestId id, int32_t blocks_max, TimeNs now_ns) {
  Request& r = request(id);
  KV_CHECK(r.load_in_flight == 0);
  if (r.loads_done == r.loads.size()) return false;
  Decision d{Decision::Kind::kCopyIn};
  d.seq = r.seq;
  d.begin = static_cast<int32_t>(seqs_.at(r.seq).path.size());
  for (size_t i = r.loads_done; i < r.loads.size() && static_cast<int32_t>(d.blocks.size()) < blocks_max; ++i) {
    const SlotId slot = blocks_.at(r.loads[i]).copy(Tier::kHost).slot;
    if (!slot.valid()) break;
    d.blocks.push_back(r.loads[i]);
    d.slots.push_back(slot);
  }
  if (d.blocks.empty()) {
    loaded(id, 0, LoadFault::kCorrupt, now_ns);
    return false;
  }
  r.load_in_flight = static_cast<int32_t>(d.blocks.size());
  emit(std::move(d));
  return true;
}

void Sam::loaded(RequestId id, int32_t blocks_ok, LoadFault fault, TimeNs now_ns) {
  Request& r = request(id);
  const int32_t block_tokens = config_.device.block_tokens;
  r.load_in_flight = 0;
  for (int32_t i = 0; i < blocks_ok; ++i) {
    const BlockId block = r.loads[r.loads_done++];
    blocks_.unlease(block, Tier::kHost);
    take_block(r.seq, block);
    host_victims_->note(block, now_ns);
    if (!r.readmitted) r.reuse.host += block_tokens;
    ++counters_.loaded_blocks;
    const int32_t used = std::min(block_tokens, r.reserved);
    r.reserved -= used;
    cells_reserved_ -= used;
  }
  if (fault == LoadFault::kNone) return;
  ++counters_.failed_loads;
  r.reuse.miss = Miss::kFailedLoad;
  r.reuse.miss_token = seqs_.length(r.seq);
  const BlockId bad = r.loads[r.loads_done];
  blocks_.unlease(bad, Tier::kHost);
  if (fault == LoadFault::kCorrupt && blocks_.at(bad).copy(Tier::kHost).leases == 0) {
    drop_host_copy(bad, index::Loss::kFailedLoad, now_ns);
  } else {
    host_victims_->note(bad, now_ns);
  }
  for (size_t i = r.loads_done + 1; i < r.loads.size(); ++i) unlease_host(r.loads[i], now_ns);
  r.loads.resize(r.loads_done);
}

}  // namespace kvtide::session
