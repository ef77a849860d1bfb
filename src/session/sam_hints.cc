// Actions of clients: run now, or after the running turn; every one is answered by what really happened.
#include <algorithm>

#include "base/check.h"
#include "session/sam.h"

namespace kvtide::session {
namespace {

using hint::Outcome;
using hint::Verb;

constexpr base::DurationNs kRetainMaxNs = 3600 * base::kSecond;
constexpr base::DurationNs kWantedSoonNs = base::kSecond;  // of a prefetch that names no deadline
constexpr size_t kDeferredMax = 64;                        // of one session
constexpr size_t kPrefetchesMax = 256;

hint::Receipt answer(hint::Receipt receipt, Outcome status, std::string reason) {
  receipt.status = status;
  receipt.reason = std::move(reason);
  return receipt;
}

}  // namespace

hint::Receipt Sam::hint(const std::string& tenant, const hint::Action& action, TimeNs now_ns) {
  hint::Receipt receipt;
  receipt.hint_id = action.hint_id;
  receipt.verb = hint::verb_name(action.verb);
  receipt.session_id = action.identity.session_id;
  if (!config_.hints) return answer(receipt, Outcome::kUnsupported, "hints are off");
  if (action.target != hint::Target::kSession) return answer(receipt, Outcome::kUnsupported, "ranges are not supported yet; target session is");
  const SessionId id = sessions_.find(tenant, action.identity.session_id);
  if (!id.valid()) return answer(receipt, Outcome::kMissing, "unknown session");
  Session& session = sessions_.at(id);
  receipt.generation = session.generation;
  if (!config_.device.reuse) return answer(receipt, Outcome::kUnsupported, "this model's state cannot be reused");
  // A pause said with a turn is about what follows the turn.
  const bool waits_for_turn =
      action.verb == Verb::kOffload || action.verb == Verb::kEvict || action.verb == Verb::kEnd || action.verb == Verb::kPause;
  if (waits_for_turn && session.running > 0) {
    if (session.deferred.size() >= kDeferredMax) return answer(receipt, Outcome::kRejected, "too many actions wait for this session's turn");
    receipt = answer(receipt, Outcome::kDeferred, "a turn of this session is running");
    session.deferred.push_back({action, receipt, session.generation, session.turns});
    return receipt;
  }
  return run_action(id, action, std::move(receipt), now_ns);
}

hint::Receipt Sam::run_action(SessionId id, const hint::Action& action, hint::Receipt receipt, TimeNs now_ns) {
  trace_hash_ = base::checksum(std::as_bytes(std::span<const uint64_t>({trace_hash_, id.value, static_cast<uint64_t>(action.verb)})));
  Session& session = sessions_.at(id);
  const BranchId newest = sessions_.newest_branch(id);
  switch (action.verb) {
    case Verb::kOffload: return offload(id, std::move(receipt), now_ns);
    case Verb::kPrefetch: return prefetch(id, action, std::move(receipt), now_ns);
    case Verb::kEvict: return evict(id, false, std::move(receipt), now_ns);
    case Verb::kEnd: return evict(id, true, std::move(receipt), now_ns);
    case Verb::kRetain: {
      const base::DurationNs asked = action.ttl_ns.value_or(300 * base::kSecond);
      session.retain_until_ns = std::max(session.retain_until_ns, now_ns + std::clamp<base::DurationNs>(asked, 0, kRetainMaxNs));
      return asked > kRetainMaxNs ? answer(receipt, Outcome::kClipped, "ttl is at most one hour") : answer(receipt, Outcome::kApplied, "");
    }
    case Verb::kPause:
      if (!newest.valid()) return answer(receipt, Outcome::kMissing, "the session holds nothing");
      sessions_.pause(newest, action.tool, action.expected_ns, now_ns);
      return answer(receipt, Outcome::kApplied, "");
    case Verb::kResume:
      if (!newest.valid()) return answer(receipt, Outcome::kMissing, "the session holds nothing");
      sessions_.branch(newest).expected_ns = now_ns + kWantedSoonNs;
      return answer(receipt, Outcome::kApplied, "");
  }
  return answer(receipt, Outcome::kUnsupported, "unknown verb");
}

hint::Receipt Sam::offload(SessionId id, hint::Receipt receipt, TimeNs now_ns) {
  if (config_.host_blocks == 0) return answer(receipt, Outcome::kUnsupported, "there is no host tier (--host-memory 0)");
  const std::vector<SessionId> tree = sessions_.at(id).parent.empty() ? sessions_.tree(id) : std::vector<SessionId>{id};
  receipt.from = index::tier_name(Tier::kDevice);
  receipt.to = index::tier_name(Tier::kHost);
  bool full = false;
  bool busy = false;
  for (SessionId member : tree) {
    if (sessions_.at(member).running > 0) {
      busy = true;
      continue;
    }
    std::vector<SeqId> mine;
    seqs_.for_each(Sequence::State::kIdle, [&](SeqId seq, const Sequence& s) {
      if (s.owner.valid() && sessions_.branch(s.owner).live && sessions_.branch(s.owner).session == member) mine.push_back(seq);
    });
    for (SeqId seq : mine) {
      // Nothing leaves the device before its colder copy is complete: what the host tier does not take stays.
      const std::vector<BlockId> path = seqs_.at(seq).path;
      const int32_t in_host = write_back(seq, 0, now_ns);
      if (in_host < static_cast<int32_t>(path.size())) {
        full = true;
        continue;
      }
      cut(seq, 0, {}, index::Loss::kHint, now_ns);
      seqs_.set_idle(seq, now_ns);
      for (BlockId block : path) {
        const bool stays = blocks_.at(block).copy(Tier::kDevice).present();
        ++(stays ? receipt.shared_kept : receipt.blocks);
      }
    }
  }
  receipt.bytes = receipt.blocks * config_.block_bytes;
  if (full) return answer(receipt, receipt.blocks > 0 ? Outcome::kClipped : Outcome::kFailed, "the host tier has no room for it");
  if (busy) return answer(receipt, Outcome::kClipped, "a child of this session is running");
  return answer(receipt, Outcome::kApplied, "");
}

hint::Receipt Sam::prefetch(SessionId id, const hint::Action& action, hint::Receipt receipt, TimeNs now_ns) {
  const BranchId branch = sessions_.newest_branch(id);
  if (!branch.valid() || sessions_.branch(branch).path.empty()) return answer(receipt, Outcome::kMissing, "nothing of this session is stored");
  Branch& b = sessions_.branch(branch);
  if (b.running > 0) return answer(receipt, Outcome::kApplied, "joined the running turn");
  b.expected_ns = now_ns + std::max<base::DurationNs>(action.expected_ns.value_or(kWantedSoonNs), base::kMillisecond);
  receipt.from = index::tier_name(Tier::kHost);
  receipt.to = index::tier_name(Tier::kDevice);
  for (const Prefetch& p : prefetches_) {
    if (p.branch == branch) return answer(receipt, Outcome::kApplied, "a prefetch of this session is under way");
  }
  if (seqs_.find_holder(b.path.back(), static_cast<int32_t>(b.path.size()) - 1, {}).valid()) return answer(receipt, Outcome::kApplied, "already on the device");
  if (prefetches_.size() >= kPrefetchesMax) return answer(receipt, Outcome::kRejected, "too many prefetches wait");
  Prefetch p;
  p.tenant = sessions_.at(id).tenant;
  p.branch = branch;
  p.receipt = answer(receipt, Outcome::kDeferred, "copying");
  prefetches_.push_back(p);
  return p.receipt;
}

bool Sam::next_prefetch(int32_t blocks_max, TimeNs now_ns) {
  while (!prefetches_.empty()) {
    Prefetch& p = prefetches_.front();
    KV_CHECK(p.in_flight == 0);
    const std::vector<BlockId> path = sessions_.branch(p.branch).path;
    const int32_t block_tokens = config_.device.block_tokens;
    if (!p.seq.valid()) {
      // The longest leading part that is on the device already, in a sequence of this branch or a free one.
      SeqId own;
      seqs_.for_each(Sequence::State::kIdle, [&](SeqId seq, const Sequence& s) {
        if (s.owner == p.branch && (s.path.empty() || (s.path.size() <= path.size() && std::equal(s.path.begin(), s.path.end(), path.begin())))) own = seq;
      });
      SeqId seq = own.valid() ? own : seqs_.find_free();
      if (!seq.valid()) {
        // Only at the cost of something wanted later than this.
        const SeqId victim = pick_idle_victim({}, now_ns);
        const bool worth = victim.valid() && (seqs_.at(victim).path.empty() || policy_->rank(seqs_.at(victim).path.back(), Tier::kDevice, now_ns) >=
                                                                                    policy_->rank(path.back(), Tier::kDevice, now_ns));
        if (worth) seq = evict_sequence({}, now_ns);
      }
      if (!seq.valid()) {
        p.receipt.reason = "no room on the device";
        end_prefetch(0, now_ns);
        continue;
      }
      seqs_.set_busy(seq, p.branch);
      p.seq = seq;
      cut(seq, static_cast<int32_t>(seqs_.at(seq).path.size()) * block_tokens, {}, index::Loss::kNone, now_ns);
      p.next = seqs_.at(seq).path.size();
      if (!config_.device.lanes && p.next == 0) {
        int32_t shareable = 0;
        while (static_cast<size_t>(shareable) < path.size() && blocks_.at(path[static_cast<size_t>(shareable)]).copy(Tier::kDevice).present()) ++shareable;
        const SeqId donor = shareable > 0 ? seqs_.find_holder(path[static_cast<size_t>(shareable - 1)], shareable - 1, seq) : SeqId{};
        if (donor.valid()) {
          Decision d{Decision::Kind::kShare};
          d.seq = seq;
          d.from = donor;
          d.end = shareable * block_tokens;
          emit(std::move(d));
          for (int32_t i = 0; i < shareable; ++i) seqs_.push_block(seq, path[static_cast<size_t>(i)]);
          p.next = static_cast<size_t>(shareable);
        }
      }
    }
    Decision d{Decision::Kind::kCopyIn};
    d.seq = p.seq;
    d.begin = static_cast<int32_t>(p.next);
    // One sequence must still fit beside what is copied; a prefetch never pushes out what is wanted sooner, so free cells are its budget.
    const int64_t room = config_.device.lanes ? static_cast<int64_t>(path.size()) : cells_free() / block_tokens;
    for (size_t i = p.next; i < path.size() && static_cast<int64_t>(d.blocks.size()) < std::min<int64_t>(blocks_max, room); ++i) {
      const index::Copy& copy = blocks_.at(path[i]).copy(Tier::kHost);
      if (!copy.present() || !copy.slot.valid()) break;
      d.blocks.push_back(path[i]);
      d.slots.push_back(copy.slot);
    }
    if (d.blocks.empty()) {
      if (p.next < path.size()) p.receipt.reason = room == 0 ? "no room on the device" : "not in the host tier any more";
      end_prefetch(0, now_ns);
      continue;
    }
    for (BlockId block : d.blocks) blocks_.lease(block, Tier::kHost);
    p.in_flight = static_cast<int32_t>(d.blocks.size());
    emit(std::move(d));
    return true;
  }
  return false;
}

void Sam::prefetch_loaded(int32_t blocks_ok, LoadFault fault, TimeNs now_ns) {
  Prefetch& p = prefetches_.front();
  const std::vector<BlockId> path = sessions_.branch(p.branch).path;
  for (int32_t i = 0; i < p.in_flight; ++i) blocks_.unlease(path[p.next + static_cast<size_t>(i)], Tier::kHost);
  p.in_flight = 0;
  for (int32_t i = 0; i < blocks_ok; ++i) {
    take_block(p.seq, path[p.next]);
    host_victims_->note(path[p.next], now_ns);
    ++p.next;
    ++p.receipt.blocks;
    ++counters_.prefetched_blocks;
  }
  if (fault == LoadFault::kNone) return;
  ++counters_.failed_loads;
  p.receipt.reason = fault == LoadFault::kCorrupt ? "a stored block failed its checksum" : "the engine had no room for it";
  const BlockId bad = path[p.next];
  if (fault == LoadFault::kCorrupt && blocks_.at(bad).copy(Tier::kHost).leases == 0) drop_host_copy(bad, index::Loss::kFailedLoad, now_ns);
  end_prefetch(0, now_ns);
}

void Sam::end_prefetch(size_t at, TimeNs now_ns) {
  Prefetch p = std::move(prefetches_[at]);
  prefetches_.erase(prefetches_.begin() + static_cast<std::ptrdiff_t>(at));
  if (p.seq.valid()) seqs_.set_idle(p.seq, now_ns);
  p.receipt.bytes = p.receipt.blocks * config_.block_bytes;
  const bool whole = p.next == sessions_.branch(p.branch).path.size();
  if (whole) {
    p.receipt.status = Outcome::kApplied;
    p.receipt.reason.clear();
  } else {
    p.receipt.status = p.receipt.blocks > 0 ? Outcome::kClipped : Outcome::kFailed;
    if (p.receipt.reason == "copying") p.receipt.reason = "stopped early";
  }
  receipts_.push_back({p.tenant, p.receipt});
}

// The turn that a prefetch was for is here: it takes what was copied so far.
void Sam::join_prefetch(BranchId branch, TimeNs now_ns) {
  for (size_t i = 0; i < prefetches_.size(); ++i) {
    if (prefetches_[i].branch != branch) continue;
    KV_CHECK(prefetches_[i].in_flight == 0);
    prefetches_[i].receipt.reason = "the turn began";
    end_prefetch(i, now_ns);
    return;
  }
}

// Frees what nobody claims any more of a path, deepest first, on the device and in the host tier.
Sam::Freed Sam::release_blocks(std::span<const BlockId> path, TimeNs now_ns) {
  Freed freed;
  std::vector<std::pair<BlockId, uint32_t>> blocks;
  for (BlockId id : path) blocks.emplace_back(id, blocks_.at(id).epoch);
  // Idle sequences lose their unclaimed ends.
  std::vector<SeqId> idle;
  seqs_.for_each(Sequence::State::kIdle, [&](SeqId seq, const Sequence&) { idle.push_back(seq); });
  for (SeqId seq : idle) {
    const std::vector<BlockId> held = seqs_.at(seq).path;
    const bool touches = !held.empty() && !path.empty() && held[0] == path[0];  // chains share from the start or not at all
    if (!touches) continue;
    size_t keep = held.size();
    while (keep > 0 && !blocks_.claimed(held[keep - 1])) --keep;
    if (keep == held.size()) continue;
    const auto before = static_cast<int64_t>(blocks_.copies_in(Tier::kDevice));
    cut(seq, static_cast<int32_t>(keep) * config_.device.block_tokens, {}, index::Loss::kHint, now_ns);
    seqs_.set_idle(seq, now_ns);
    freed.device_blocks += before - static_cast<int64_t>(blocks_.copies_in(Tier::kDevice));
  }
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    const auto [id, epoch] = *it;
    if (!blocks_.alive(id, epoch)) continue;
    if (blocks_.claimed(id)) {
      ++freed.shared_kept;
      continue;
    }
    const index::Copy& copy = blocks_.at(id).copy(Tier::kHost);
    if (copy.present() && copy.leases == 0 && copy.children == 0) {
      drop_host_copy(id, index::Loss::kHint, now_ns);
      ++freed.host_blocks;
    } else {
      blocks_.sweep(id);
    }
  }
  return freed;
}

hint::Receipt Sam::evict(SessionId id, bool end, hint::Receipt receipt, TimeNs now_ns) {
  const bool with_children = end || sessions_.at(id).parent.empty();
  const std::vector<SessionId> tree = with_children ? sessions_.tree(id) : std::vector<SessionId>{id};
  bool busy = false;
  // Children first: their blocks extend their parents'.
  for (auto it = tree.rbegin(); it != tree.rend(); ++it) {
    if (sessions_.at(*it).running > 0) {
      busy = true;
      continue;
    }
    const std::vector<BranchId> branches = sessions_.at(*it).branches;
    for (BranchId b : branches) {
      join_prefetch(b, now_ns);
      Branch& branch = sessions_.branch(b);
      // Releasing claims must not sweep blocks away before they are counted, so copies go first and the path is released by hand.
      const std::vector<BlockId> path = branch.path;
      for (BlockId block : path) blocks_.release(block, b);
      branch.path.clear();
      const Freed freed = release_blocks(path, now_ns);
      receipt.blocks += freed.device_blocks + freed.host_blocks;
      receipt.shared_kept += freed.shared_kept;
      drop_branch(b, now_ns);
    }
    sessions_.at(*it).ended = true;
    sessions_.at(*it).retain_until_ns = 0;
  }
  receipt.bytes = receipt.blocks * config_.block_bytes;
  return busy ? answer(receipt, Outcome::kClipped, "a child of this session is running") : answer(receipt, Outcome::kApplied, "");
}

// The session's last running turn ended. An action is for the turns that ran when it came: if a later one began, it is stale.
void Sam::run_deferred(SessionId id, TimeNs now_ns) {
  std::vector<DeferredAction> waiting = std::exchange(sessions_.at(id).deferred, {});
  for (DeferredAction& d : waiting) {
    const Session& session = sessions_.at(id);
    hint::Receipt receipt = d.receipt;
    if (session.generation != d.generation || session.turns != d.turns) {
      receipt = answer(receipt, Outcome::kStale, "a newer turn began");
    } else {
      receipt = run_action(id, d.action, std::move(receipt), now_ns);
    }
    receipts_.push_back({session.tenant, std::move(receipt)});
  }
}

}  // namespace kvtide::session
