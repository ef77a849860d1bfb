// Who speaks: sessions by name, branches by lineage, compaction by what a prompt no longer contains.
#include <algorithm>

#include "base/check.h"
#include "session/sam.h"

namespace kvtide::session {
namespace {

// The branches that claim something of a prompt: whoever claims any of its blocks claims the first one as well.
void for_each_sharer(const auto& blocks, std::span<const BlockKey> keys, const auto& consider) {
  if (keys.empty()) return;
  if (const BlockId first = blocks.find(keys.front()); first.valid()) blocks.for_each_claim(first, consider);
}

}  // namespace

void Sam::identify(Request& r, TimeNs now_ns) {
  const Arrival& a = r.arrival;
  const bool named = !a.identity.session_id.empty();
  auto own_from = static_cast<int32_t>(a.keys.size());
  BranchId edited;
  if (named) {
    r.session = sessions_.find(a.tenant, a.identity.session_id);
  } else if (BranchId known = branch_by_lineage(r, {}); known.valid()) {
    Branch& branch = sessions_.branch(known);
    // As long as no reply filled a block of its own, nothing in its frontier is its own.
    if (frontier_blocks(branch) <= static_cast<size_t>(branch.own_from)) branch.own_from = own_from;
    r.session = branch.session;
    r.branch = known;
    return;
  } else if (edited = branch_by_replies(r); edited.valid()) {
    r.session = sessions_.branch(edited).session;
    own_from = sessions_.branch(edited).own_from;
  }
  if (!r.session.valid()) {
    if (sessions_.full() && !make_session_room(now_ns)) return;
    std::string name = a.identity.session_id;
    // A client may have taken a name of this form: never give it to somebody else.
    while (!named && (name.empty() || sessions_.find(a.tenant, name).valid())) name = "derived-" + std::to_string(++derived_names_);
    r.session = sessions_.create(a.tenant, name, !named, now_ns);
    if (a.identity.parent_id.empty()) sessions_.note_newcomer(a.tenant, now_ns);
  }
  Session& session = sessions_.at(r.session);
  if (!a.identity.parent_id.empty()) session.parent = a.identity.parent_id;
  sessions_.judge_end(r.session, a.keys);
  // A reused id is a new life of the same name.
  if (session.ended && session.branches.empty()) sessions_.begin_life(r.session);
  // Without a name it may be a side request as well as an edit: what it was before stays, and is left behind.
  if (named) r.branch = branch_by_lineage(r, r.session);
  if (named && !r.branch.valid()) r.branch = replaced_branch(r, r.session);
  if (r.branch.valid()) return;
  if (BranchId surplus = sessions_.pick_surplus_branch(r.session); surplus.valid()) {
    drop_branch(surplus, now_ns);
    if (surplus == edited) edited = {};
  }
  r.branch = sessions_.add_branch(r.session);
  sessions_.branch(r.branch).own_from = own_from;
  const BranchId left = edited.valid() ? edited : branch_left_behind(r);
  if (!left.valid()) return;
  const Branch& branch = sessions_.branch(left);
  if (branch.running > 0 || branch.wait == Wait::kNone) return;
  sessions_.note_left_behind(left, r.branch, common_blocks(r, branch), frontier_blocks(branch), r.reuse.prompt < branch.tokens, now_ns);
}

// A prompt that is nobody's continuation may have come instead of one: the idle branch that it shares the most with, the newest of these.
// For a session with a name among its own branches, for one without among all that have none.
BranchId Sam::branch_left_behind(const Request& r) const {
  BranchId best;
  size_t best_common = 0;
  auto consider = [&](BranchId id, size_t common) {
    const Branch& branch = sessions_.branch(id);
    if (id == r.branch || branch.running > 0 || branch.path.empty() || branch.wait == Wait::kNone) return;
    const bool newer = best.valid() && branch.waiting_since_ns > sessions_.branch(best).waiting_since_ns;
    if (best.valid() && (common < best_common || (common == best_common && !newer))) return;
    best = id;
    best_common = common;
  };
  if (!sessions_.at(r.session).derived) {
    for (BranchId id : sessions_.at(r.session).branches) consider(id, common_blocks(r, sessions_.branch(id)));
    return best;
  }
  const BlockId block = deepest_known(r);
  if (!block.valid()) return best;
  blocks_.for_each_claim(block, [&](BranchId id) {
    if (sessions_.at(sessions_.branch(id).session).derived) consider(id, 0);
  });
  return best;
}

// The last block of the prompt that the index knows and somebody claims.
BlockId Sam::deepest_known(const Request& r) const {
  for (size_t n = r.arrival.keys.size(); n > 0; --n) {
    const BlockId block = blocks_.find(r.arrival.keys[n - 1]);
    if (block.valid() && blocks_.claimed(block)) return block;
  }
  return {};
}

// Leading blocks of the prompt that are also the frontier's. Keys chain, so equal at one place means equal up to it.
size_t Sam::common_blocks(const Request& r, const Branch& branch) const {
  size_t common = 0;
  size_t differs = std::min(frontier_blocks(branch), r.arrival.keys.size()) + 1;
  while (common + 1 < differs) {
    const size_t middle = (common + differs) / 2;
    (frontier_key(branch, middle - 1) == index::short_key(r.arrival.keys[middle - 1]) ? common : differs) = middle;
  }
  return common;
}

// A conversation without a name that was edited: the branch whose own part, which begins with its first reply, the prompt repeats furthest.
// What comes before that part many conversations may share: system prompt, tools, a common first message.
BranchId Sam::branch_by_replies(const Request& r) const {
  BranchId best;
  size_t best_common = 0;
  for_each_sharer(blocks_, r.arrival.keys, [&](BranchId id) {
    const Branch& branch = sessions_.branch(id);
    const auto own = static_cast<size_t>(branch.own_from);
    if (!sessions_.at(branch.session).derived || own >= frontier_blocks(branch) || own >= r.arrival.keys.size()) return;
    if (frontier_key(branch, own) != index::short_key(r.arrival.keys[own])) return;
    const size_t common = common_blocks(r, branch);
    if (common <= best_common) return;
    best = id;
    best_common = common;
  });
  return best;
}

// The branch whose whole frontier the prompt extends; the longest one. With an invalid `session`: among derived sessions of this tenant
// (keys are salted by tenant, so another tenant's blocks are not even found).
BranchId Sam::branch_by_lineage(const Request& r, SessionId session) const {
  BranchId best;
  size_t best_length = 0;
  auto consider = [&](BranchId id) {
    const Branch& branch = sessions_.branch(id);
    if (branch.running > 0 || branch.path.empty()) return;
    if (session.valid() ? branch.session != session : !sessions_.at(branch.session).derived) return;
    const size_t n = frontier_blocks(branch);
    if (n > r.arrival.keys.size() || n < best_length) return;
    if (frontier_key(branch, n - 1) != index::short_key(r.arrival.keys[n - 1])) return;
    const bool newer = !best.valid() || n > best_length || branch.waiting_since_ns > sessions_.branch(best).waiting_since_ns;
    if (newer) {
      best = id;
      best_length = n;
    }
  };
  if (session.valid()) {
    for (BranchId id : sessions_.at(session).branches) consider(id);
    return best;
  }
  for_each_sharer(blocks_, r.arrival.keys, consider);
  return best;
}

// The idle branch that this prompt replaces: the conversation was compacted or edited, so what the prompt no longer contains is dead. A
// branch that waits for a tool is not replaced by an unrelated prompt: that is a sub-agent under the same id.
BranchId Sam::replaced_branch(const Request& r, SessionId session) const {
  BranchId best;
  size_t best_common = 0;
  for (BranchId id : sessions_.at(session).branches) {
    const Branch& branch = sessions_.branch(id);
    if (branch.running > 0) continue;
    const size_t frontier = frontier_blocks(branch);
    const size_t common = common_blocks(r, branch);
    const bool edited = common > 0 && common * 2 >= frontier;
    const bool compacted = branch.wait != Wait::kTool && r.reuse.prompt < branch.tokens;
    const bool tiny = branch.path.empty();
    if (!edited && !compacted && !tiny) continue;
    if (!best.valid() || common > best_common) {
      best = id;
      best_common = common;
    }
  }
  return best;
}

// Claims follow the frontier: new blocks are claimed, blocks that the new path lacks are released (superseded).
void Sam::set_path(BranchId id, std::span<const BlockId> path, TimeNs now_ns) {
  Branch& branch = sessions_.branch(id);
  branch.lost.clear();
  size_t common = 0;
  while (common < path.size() && common < branch.path.size() && path[common] == branch.path[common]) ++common;
  std::vector<BlockId> released(branch.path.begin() + static_cast<std::ptrdiff_t>(common), branch.path.end());
  branch.path.resize(common);
  for (size_t i = common; i < path.size(); ++i) {
    blocks_.claim(path[i], id);
    branch.path.push_back(path[i]);
  }
  for (auto it = released.rbegin(); it != released.rend(); ++it) {
    blocks_.release(*it, id);
    host_victims_->note(*it, now_ns);
    blocks_.sweep(*it);
  }
}

uint64_t Sam::frontier_key(const Branch& branch, size_t at) const {
  if (at < branch.path.size()) return index::short_key(blocks_.at(branch.path[at]).key);
  return branch.lost[frontier_blocks(branch) - 1 - at];
}

// Whether `path` is a leading part of the frontier, or all of it.
bool Sam::behind_frontier(const Branch& branch, std::span<const BlockId> path) const {
  if (path.size() > frontier_blocks(branch)) return false;
  for (size_t i = 0; i < path.size(); ++i) {
    if (frontier_key(branch, i) != index::short_key(blocks_.at(path[i]).key)) return false;
  }
  return true;
}

// Part of what was lost of the frontier has been computed again. REQUIRES: `path` is behind the frontier.
void Sam::claim_again(BranchId id, std::span<const BlockId> path) {
  Branch& branch = sessions_.branch(id);
  while (branch.path.size() < path.size()) {
    const BlockId block = path[branch.path.size()];
    blocks_.claim(block, id);
    branch.path.push_back(block);
    branch.lost.pop_back();
  }
}

// A claim on a block that no tier holds protects nothing. It is given up, so that the index is bounded by what the tiers hold; what the
// frontier was is remembered in 8 bytes a block. The first block stays: a session without a name is found by it.
void Sam::let_go_of_lost(BranchId id) {
  Branch& branch = sessions_.branch(id);
  if (branch.running > 0) return;
  while (branch.path.size() > 1) {
    const BlockId block = branch.path.back();
    const index::Block& last = blocks_.at(block);
    if (last.copy(Tier::kDevice).present() || last.copy(Tier::kHost).present()) return;
    branch.lost.push_back(index::short_key(last.key));
    branch.path.pop_back();
    blocks_.release(block, id);
    blocks_.sweep(block);
  }
}

// Branch ids are used again: nothing may remember this one.
void Sam::drop_branch(BranchId id, TimeNs now_ns) {
  join_prefetch(id, now_ns);
  set_path(id, {}, now_ns);
  seqs_.disown(id);
  sessions_.remove_branch(id);
}

void Sam::forget_session(SessionId id, TimeNs now_ns) {
  const std::vector<BranchId> branches = sessions_.at(id).branches;
  for (BranchId b : branches) {
    drop_branch(b, now_ns);
  }
  for (DeferredAction& d : sessions_.at(id).deferred) {
    d.receipt.status = hint::Outcome::kStale;
    d.receipt.reason = "the session was forgotten";
    receipts_.push_back({sessions_.at(id).tenant, d.receipt});
  }
  sessions_.remove(id);
}

bool Sam::make_session_room(TimeNs now_ns) {
  while (sessions_.full()) {
    const SessionId victim = sessions_.pick_forgettable();
    if (!victim.valid()) return false;
    forget_session(victim, now_ns);
  }
  return true;
}

}  // namespace kvtide::session
