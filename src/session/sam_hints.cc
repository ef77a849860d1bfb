// Actions of clients: run now, or after the running turn; every one is answered by what really happened.
#include <algorithm>
#include <map>

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
    DeferredAction waiting{action, receipt, session.turns, sessions_.turns_begun(), {}};
    for (const auto& [other, r] : requests_) {
      if (r.session == id) waiting.waits_for.push_back(other);
    }
    session.deferred.push_back(std::move(waiting));
    return receipt;
  }
  return run_action(id, action, std::move(receipt), sessions_.turns_begun(), now_ns);
}

hint::Receipt Sam::run_action(SessionId id, const hint::Action& action, hint::Receipt receipt, int64_t at_turn, TimeNs now_ns) {
  trace_hash_ = base::checksum(std::as_bytes(std::span<const uint64_t>({trace_hash_, id.value, static_cast<uint64_t>(action.verb)})));
  const BranchId newest = sessions_.newest_branch(id);
  switch (action.verb) {
    case Verb::kOffload: return offload(id, std::move(receipt), now_ns);
    case Verb::kPrefetch: return prefetch(id, action, std::move(receipt), now_ns);
    case Verb::kEvict: return evict(id, false, std::move(receipt), at_turn, now_ns);
    case Verb::kEnd: {
      std::optional<BlockKey> end_key;
      if (newest.valid() && !sessions_.branch(newest).path.empty()) end_key = blocks_.at(sessions_.branch(newest).path.back()).key;
      const bool believed = sessions_.believes_ends(sessions_.at(id).tenant);
      sessions_.note_end(id, end_key);
      if (!believed) return answer(receipt, Outcome::kRejected, "sessions of this client went on after it said that they end: nothing is freed on its word");
      return evict(id, true, std::move(receipt), at_turn, now_ns);
    }
    case Verb::kRetain: return retain(id, action, std::move(receipt), now_ns);
    case Verb::kPause:
      if (!newest.valid()) return answer(receipt, Outcome::kMissing, "the session holds nothing");
      sessions_.pause(newest, action.tool, action.expected_ns, now_ns);
      return answer(receipt, Outcome::kApplied, "");
    case Verb::kResume:
      if (!newest.valid()) return answer(receipt, Outcome::kMissing, "the session holds nothing");
      sessions_.resume(newest, kWantedSoonNs, now_ns);
      return answer(receipt, Outcome::kApplied, "");
  }
  return answer(receipt, Outcome::kUnsupported, "unknown verb");
}

hint::Receipt Sam::retain(SessionId id, const hint::Action& action, hint::Receipt receipt, TimeNs now_ns) {
  Session& session = sessions_.at(id);
  // An id used again is a new life: what was asked for the one before must not outlast it.
  if (session.ended) return answer(receipt, Outcome::kStale, "the session has ended");
  const base::DurationNs asked = action.ttl_ns.value_or(300 * base::kSecond);
  if (session.retain_until_ns <= now_ns) session.retain_order = sessions_.next_stamp();
  session.retain_until_ns = std::max(session.retain_until_ns, now_ns + std::clamp<base::DurationNs>(asked, 0, kRetainMaxNs));
  share_out_retention(now_ns);
  if (session.retain_share < 1) return answer(receipt, Outcome::kClipped, "this tenant or session tree retains all it may");
  return asked > kRetainMaxNs ? answer(receipt, Outcome::kClipped, "ttl is at most one hour") : answer(receipt, Outcome::kApplied, "");
}

// Retained sessions get their share of the budgets of their tenant and their tree, earlier promises first. Blocks are counted once for each
// branch that claims them. Contexts grow, so this is done again at each tick. O(sessions).
void Sam::share_out_retention(TimeNs now_ns) {
  std::vector<SessionId> retained;
  sessions_.for_each([&](SessionId id, const Session& session) {
    if (session.retain_until_ns > now_ns) retained.push_back(id);
  });
  std::sort(retained.begin(), retained.end(), [&](SessionId a, SessionId b) { return sessions_.at(a).retain_order < sessions_.at(b).retain_order; });
  const double room = static_cast<double>(config_.device.device_tokens / config_.device.block_tokens + config_.host_blocks);
  const auto tenant_max = static_cast<int64_t>(config_.retain_tenant_share * room);
  const auto tree_max = static_cast<int64_t>(config_.retain_tree_share * room);
  std::map<std::string, int64_t> of_tenant;
  std::map<std::pair<std::string, std::string>, int64_t> of_tree;
  for (SessionId id : retained) {
    Session& session = sessions_.at(id);
    int64_t blocks = 0;
    for (BranchId b : session.branches) blocks += static_cast<int64_t>(sessions_.branch(b).path.size());
    int64_t& tenant = of_tenant[session.tenant];
    int64_t& tree = of_tree[{session.tenant, sessions_.root_name(id)}];
    const int64_t granted = std::min({blocks, tenant_max - tenant, tree_max - tree});
    tenant += granted;
    tree += granted;
    const double share = blocks == 0 ? 1 : static_cast<double>(granted) / static_cast<double>(blocks);
    const bool less = share < session.retain_share;
    session.retain_share = share;
    if (!less) continue;
    for (BranchId b : session.branches) {
      for (BlockId block : sessions_.branch(b).path) host_victims_->note(block, now_ns);
    }
  }
}

hint::Receipt Sam::prefetch(SessionId id, const hint::Action& action, hint::Receipt receipt, TimeNs now_ns) {
  const BranchId branch = sessions_.newest_branch(id);
  if (!branch.valid() || sessions_.branch(branch).path.empty()) return answer(receipt, Outcome::kMissing, "nothing of this session is stored");
  Branch& b = sessions_.branch(branch);
  if (b.running > 0) return answer(receipt, Outcome::kApplied, "joined the running turn");
  cancel_offload(branch);
  sessions_.resume(branch, action.expected_ns.value_or(kWantedSoonNs), now_ns);
  receipt.from = index::tier_name(Tier::kHost);
  receipt.to = index::tier_name(Tier::kDevice);
  for (const Prefetch& p : prefetches_) {
    if (p.branch == branch) return answer(receipt, Outcome::kApplied, "a prefetch of this session is under way");
  }
  if (seqs_.find_holder(b.path.back(), static_cast<int32_t>(b.path.size()) - 1, {}).valid()) {
    return b.lost.empty() ? answer(receipt, Outcome::kApplied, "already on the device") : answer(receipt, Outcome::kClipped, "on the device; the rest is not stored any more");
  }
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
  const std::span<const BlockId> asked = std::span(path).subspan(p.next, static_cast<size_t>(p.in_flight));
  for (BlockId block : asked) blocks_.unlease(block, Tier::kHost);
  p.in_flight = 0;
  for (int32_t i = 0; i < blocks_ok; ++i) {
    take_block(p.seq, path[p.next]);
    ++p.next;
    ++p.receipt.blocks;
    ++counters_.prefetched_blocks;
  }
  for (BlockId block : asked) host_victims_->note(block, now_ns);
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
  const bool whole = p.next == frontier_blocks(sessions_.branch(p.branch));
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
Sam::Freed Sam::release_blocks(std::span<const BlockId> path, BranchId branch, TimeNs now_ns) {
  Freed freed;
  std::vector<std::pair<BlockId, uint32_t>> blocks;
  for (BlockId id : path) blocks.emplace_back(id, blocks_.at(id).epoch);
  // Idle sequences lose their unclaimed ends, and the tail of a last block that was this branch's or is nobody's.
  std::vector<SeqId> idle;
  seqs_.for_each(Sequence::State::kIdle, [&](SeqId seq, const Sequence&) { idle.push_back(seq); });
  for (SeqId seq : idle) {
    const std::vector<BlockId> held = seqs_.at(seq).path;
    const bool touches = !held.empty() && !path.empty() && held[0] == path[0];  // chains share from the start or not at all
    const BranchId owner = seqs_.at(seq).owner;
    if (!touches && owner != branch) continue;
    size_t keep = held.size();
    while (keep > 0 && !blocks_.claimed(held[keep - 1])) --keep;
    if (keep == held.size() && (seqs_.at(seq).tail.empty() || (owner.valid() && owner != branch))) continue;
    const auto before = static_cast<int64_t>(blocks_.copies_in(Tier::kDevice));
    cut(seq, static_cast<int32_t>(keep) * config_.device.block_tokens, {}, index::Loss::kHint, now_ns);
    seqs_.set_idle(seq, now_ns);
    freed.device_blocks += before - static_cast<int64_t>(blocks_.copies_in(Tier::kDevice));
  }
  bool blocked = false;  // a deeper host copy is leased, so this one goes after it
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    const auto [id, epoch] = *it;
    if (!blocks_.alive(id, epoch)) continue;
    if (blocks_.claimed(id)) {
      host_victims_->note(id, now_ns);  // one claim less
      ++freed.shared_kept;
      continue;
    }
    const index::Copy& copy = blocks_.at(id).copy(Tier::kHost);
    blocked = copy.present() && (blocked || copy.leases > 0);
    if (blocked) unwanted_.insert(id);
    if (copy.present() && !blocked && copy.children == 0) {
      drop_host_copy(id, index::Loss::kHint, now_ns);
      ++freed.host_blocks;
    } else {
      blocks_.sweep(id);
    }
  }
  return freed;
}

// Ends the claims of what existed when the action came: branches with a newer turn are wanted again and stay.
hint::Receipt Sam::evict(SessionId id, bool end, hint::Receipt receipt, int64_t at_turn, TimeNs now_ns) {
  const std::vector<SessionId> tree = end ? sessions_.tree(id) : std::vector<SessionId>{id};
  Freed freed;
  bool dropped = false;
  bool own_kept = false;
  bool child_kept = false;
  // Children first: their blocks extend their parents'.
  for (auto it = tree.rbegin(); it != tree.rend(); ++it) {
    const std::vector<BranchId> branches = sessions_.at(*it).branches;
    bool kept = false;
    for (BranchId b : branches) {
      join_prefetch(b, now_ns);
      cancel_offload(b);
      Branch& branch = sessions_.branch(b);
      if (branch.running > 0 || branch.last_turn > at_turn) {
        kept = true;
        continue;
      }
      // Releasing claims must not sweep blocks away before they are counted, so copies go first and the path is released by hand.
      const std::vector<BlockId> path = branch.path;
      for (BlockId block : path) blocks_.release(block, b);
      branch.path.clear();
      const Freed more = release_blocks(path, b, now_ns);
      freed.device_blocks += more.device_blocks;
      freed.host_blocks += more.host_blocks;
      freed.shared_kept += more.shared_kept;
      drop_branch(b, now_ns);
      dropped = true;
    }
    (*it == id ? own_kept : child_kept) |= kept;
    Session& session = sessions_.at(*it);
    if (kept || session.last_turn > at_turn) continue;
    session.ended = true;
    session.retain_until_ns = 0;
  }
  receipt.blocks = freed.device_blocks + freed.host_blocks;
  receipt.bytes = receipt.blocks * config_.block_bytes;
  receipt.shared_kept = freed.shared_kept;
  if (freed.device_blocks > 0) receipt.from = index::tier_name(Tier::kDevice);
  if (freed.host_blocks > 0) (receipt.from += receipt.from.empty() ? "" : ",") += index::tier_name(Tier::kHost);
  if (own_kept && !dropped) return answer(receipt, Outcome::kStale, "a newer turn began");
  if (own_kept) return answer(receipt, Outcome::kClipped, "a newer turn goes on with the rest");
  return child_kept ? answer(receipt, Outcome::kClipped, "a child of this session is running") : answer(receipt, Outcome::kApplied, "");
}

// A turn of the session ended: actions that waited for no other turn run now. Each waits for no more turns than those behind it. An offload
// or a pause that a newer turn overtook is stale; evict and end take what existed when they came.
void Sam::run_deferred(SessionId id, RequestId finished, TimeNs now_ns) {
  std::vector<DeferredAction>& waiting = sessions_.at(id).deferred;
  std::vector<DeferredAction> ready;
  for (DeferredAction& d : waiting) {
    std::erase(d.waits_for, finished);
    if (d.waits_for.empty()) ready.push_back(std::move(d));
  }
  waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(ready.size()));
  for (DeferredAction& d : ready) {
    const Session& session = sessions_.at(id);
    const bool overtaken = (d.action.verb == Verb::kOffload || d.action.verb == Verb::kPause) && session.turns != d.turns;
    hint::Receipt receipt = overtaken ? answer(std::move(d.receipt), Outcome::kStale, "a newer turn began")
                                      : run_action(id, d.action, std::move(d.receipt), d.at_turn, now_ns);
    if (receipt.status != Outcome::kDeferred) receipts_.push_back({session.tenant, std::move(receipt)});
  }
}

std::optional<hint::Receipt> Sam::take_receipt(const std::string& tenant, const std::string& hint_id) {
  for (size_t i = 0; i < receipts_.size(); ++i) {
    if (receipts_[i].receipt.hint_id != hint_id || receipts_[i].tenant != tenant) continue;
    hint::Receipt found = std::move(receipts_[i].receipt);
    receipts_.erase(receipts_.begin() + static_cast<std::ptrdiff_t>(i));
    return found;
  }
  return std::nullopt;
}

}  // namespace kvtide::session
