// Construction, the life of a request, invariants. Admission, copies, identity and hints have files of their own.
#include "session/sam.h"

#include <algorithm>

#include "base/check.h"

namespace kvtide::session {

Sam::Sam(SamConfig config)
    : config_(std::move(config)),
      history_(config_.history_blocks),
      seqs_(config_.device, blocks_),
      sessions_(config_.sessions_max, config_.branches_max, config_.ideas) {}

base::Result<std::unique_ptr<Sam>> Sam::make(SamConfig config) {
  std::unique_ptr<Sam> sam(new Sam(std::move(config)));
  auto policy = policy::make_policy(sam->config_.policy, {sam->blocks_, sam->sessions_, sam->costs_, sam->config_.device.block_tokens,
                                                          sam->config_.block_bytes, sam->config_.host_blocks > 0, sam->config_.ideas});
  if (!policy) return tl::make_unexpected(std::move(policy.error()));
  sam->policy_ = std::move(*policy);
  sam->host_victims_ = std::make_unique<policy::VictimQueue>(sam->blocks_, *sam->policy_, Tier::kHost);
  return sam;
}

Sam::Request& Sam::request(RequestId id) {
  const auto it = requests_.find(id);
  KV_CHECK(it != requests_.end());
  return it->second;
}

const Sam::Request& Sam::request(RequestId id) const {
  const auto it = requests_.find(id);
  KV_CHECK(it != requests_.end());
  return it->second;
}

void Sam::arrive(Arrival arrival, TimeNs now_ns) {
  KV_CHECK(!arrival.tokens.empty() && static_cast<int32_t>(arrival.tokens.size()) < config_.device.seq_tokens_max);
  const RequestId id = arrival.id;
  KV_CHECK(!requests_.contains(id));
  Request& r = requests_[id];
  r.arrival = std::move(arrival);
  r.keys_prompt = r.arrival.keys.size();
  r.reuse.prompt = static_cast<int32_t>(r.arrival.tokens.size());
  identify(r, now_ns);
  if (!r.session.valid()) return;
  Session& session = sessions_.at(r.session);
  // A newer turn cancels a queued offload: its blocks are wanted after all.
  std::erase_if(session.deferred, [&](DeferredAction& d) {
    if (d.action.verb != hint::Verb::kOffload) return false;
    d.receipt.status = hint::Outcome::kStale;
    d.receipt.reason = "a newer turn began";
    receipts_.push_back({session.tenant, d.receipt});
    return true;
  });
  if (!r.arrival.prior_tools.empty()) sessions_.note_tool(r.branch, r.arrival.prior_tools.front());
  sessions_.begin_turn(r.branch, now_ns);
  session.prompt_tokens = r.reuse.prompt;
  session.prompt_tokens_total += r.reuse.prompt;
  join_prefetch(r.branch, now_ns);
}

void Sam::extend(RequestId id, int32_t count, TimeNs now_ns) {
  Request& r = request(id);
  const auto block_tokens = static_cast<size_t>(config_.device.block_tokens);
  const int32_t used = std::min(count, r.reserved);
  r.reserved -= used;
  cells_reserved_ -= used;
  for (int32_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(seqs_.length(r.seq));
    KV_CHECK(at < r.arrival.tokens.size());
    seqs_.push_tail(r.seq, r.arrival.tokens[at]);
    if (seqs_.at(r.seq).tail.size() < block_tokens || !config_.device.reuse) continue;
    const std::vector<BlockId>& path = seqs_.at(r.seq).path;
    const size_t n = path.size();
    if (n == r.arrival.keys.size()) {
      r.arrival.keys.push_back(index::child_key(n == 0 ? r.arrival.root : r.arrival.keys[n - 1],
                                                std::span(r.arrival.tokens).subspan(n * block_tokens, block_tokens)));
    }
    const BlockId block = blocks_.ensure(n == 0 ? BlockId{} : path.back(), r.arrival.keys[n]);
    const bool twin = !config_.device.lanes && blocks_.at(block).copy(Tier::kDevice).present();
    history_.note(r.arrival.keys[n], index::Loss::kNone);
    blocks_.touch(block, now_ns, false);
    if (twin) {
      // A sibling computed the same block meanwhile: share its cells, so that a block on the device is there once.
      Decision d{Decision::Kind::kDedup};
      d.seq = r.seq;
      d.from = seqs_.find_holder(block, static_cast<int32_t>(n), r.seq);
      d.begin = static_cast<int32_t>(n * block_tokens);
      d.end = d.begin + static_cast<int32_t>(block_tokens);
      emit(std::move(d));
      ++counters_.dedup_blocks;
    }
    seqs_.close_tail(r.seq, block);
    host_victims_->note(block, now_ns);  // if it has a host copy, that is spare now
  }
}

bool Sam::reserve(RequestId id, int32_t count, TimeNs now_ns) {
  Request& r = request(id);
  if (config_.device.lanes) return seqs_.length(r.seq) + count <= config_.device.seq_tokens_max;
  if (r.reserved >= count) return true;
  const int32_t room = config_.device.seq_tokens_max - seqs_.length(r.seq);
  if (room < count) return false;
  // Ask for a block at once, so that decoding does not come back for every token; settle for less under pressure.
  for (const int32_t want : {std::max(count, std::min(room, config_.device.block_tokens)), count}) {
    const int32_t more = want - r.reserved;
    if (!make_device_room(more, r.seq, now_ns)) continue;
    r.reserved += more;
    cells_reserved_ += more;
    return true;
  }
  return false;
}

void Sam::release_sequence(Request& r, TimeNs now_ns) {
  if (!r.seq.valid()) return;
  for (size_t i = r.loads_done; i < r.loads.size(); ++i) unlease_host(r.loads[i], now_ns);
  r.loads.clear();
  r.loads_done = 0;
  r.load_in_flight = 0;
  cells_reserved_ -= r.reserved;
  r.reserved = 0;
  if (!config_.device.reuse) cut(r.seq, 0, {}, index::Loss::kNone, now_ns);
  seqs_.set_idle(r.seq, now_ns);
  r.seq = {};
}

void Sam::preempt(RequestId id, TimeNs now_ns) {
  request(id).readmitted = true;
  release_sequence(request(id), now_ns);
}

void Sam::finish(RequestId id, Finish finish, int32_t reply_tokens, TimeNs now_ns) {
  Request& r = request(id);
  const SessionId session = r.session;
  if (r.branch.valid()) {
    Branch& branch = sessions_.branch(r.branch);
    if (r.seq.valid()) {
      const std::vector<BlockId> path = seqs_.at(r.seq).path;
      branch.tokens = seqs_.length(r.seq);
      // A turn that was broken off before it got as far as the frontier takes nothing away from it.
      const bool broken_off = finish == Finish::kCancelled || finish == Finish::kError;
      if (broken_off && behind_frontier(branch, path)) {
        claim_again(r.branch, path);
      } else {
        set_path(r.branch, path, now_ns);
      }
    }
    sessions_.end_turn(r.branch, finish, reply_tokens, now_ns);
    sessions_.at(session).reused_tokens_total += r.reuse.device + r.reuse.host;
  }
  release_sequence(r, now_ns);
  requests_.erase(id);
  trace_hash_ = base::checksum(std::as_bytes(std::span<const uint64_t>({trace_hash_, id.value, static_cast<uint64_t>(finish)})));
  if (session.valid()) run_deferred(session, id, now_ns);
}

BranchRef Sam::branch_ref(RequestId id) const {
  const Request& r = request(id);
  if (!r.session.valid()) return {};
  const Session& session = sessions_.at(r.session);
  return {r.session, r.branch, session.life, session.turns};
}

void Sam::note_tool_calls(const BranchRef& ref, const std::vector<std::string>& tools) {
  if (!ref.session.valid()) return;
  const Session& session = sessions_.at(ref.session);
  if (!session.live || session.life != ref.life || session.turns != ref.turns) return;
  Branch& branch = sessions_.branch(ref.branch);
  if (!branch.live || branch.session != ref.session || branch.running > 0) return;
  branch.wait = Wait::kTool;
  branch.tool = tools.empty() ? "" : tools.front();
}

void Sam::tick(TimeNs now_ns) {
  sessions_.observe(now_ns);
  if (sessions_.full()) make_session_room(now_ns);
  sessions_.for_each([&](SessionId, const Session& session) {
    for (BranchId b : session.branches) let_go_of_lost(b);
  });
  share_out_retention(now_ns);
}

int64_t Sam::host_blocks_free() const {
  return config_.host_blocks - static_cast<int64_t>(blocks_.copies_in(Tier::kHost));
}

int64_t Sam::blocks_in(SessionId id, Tier tier) const {
  std::vector<BlockId> all;
  for (BranchId b : sessions_.at(id).branches) {
    for (BlockId block : sessions_.branch(b).path) {
      if (blocks_.at(block).copy(tier).present()) all.push_back(block);
    }
  }
  std::sort(all.begin(), all.end());
  return std::unique(all.begin(), all.end()) - all.begin();
}

void Sam::check_invariants(TimeNs now_ns) {
  blocks_.check_invariants();
  seqs_.check_invariants();
  host_victims_->check_invariants(now_ns);
  KV_CHECK(host_blocks_free() >= 0);
  blocks_.for_each([&](BlockId id) { KV_CHECK(!copy_failed(id) || blocks_.at(id).copy(Tier::kHost).leases > 0); });
  int64_t reserved = 0;
  int32_t busy = 0;
  for (const auto& [id, r] : requests_) {
    reserved += r.reserved;
    if (r.seq.valid()) ++busy;
  }
  for (const Prefetch& p : prefetches_) busy += p.seq.valid() ? 1 : 0;
  KV_CHECK(reserved == cells_reserved_);
  KV_CHECK(busy == seqs_.busy_count());
  KV_CHECK(seqs_.cells_used() + (config_.device.lanes ? 0 : cells_reserved_) <= config_.device.device_tokens);
  sessions_.for_each([&](SessionId sid, const Session& session) {
    int32_t running = 0;
    for (BranchId b : session.branches) {
      const Branch& branch = sessions_.branch(b);
      KV_CHECK(branch.live && branch.session == sid);
      running += branch.running;
      for (BlockId block : branch.path) KV_CHECK(blocks_.claimed_by(block, b));
    }
    KV_CHECK(running == session.running);
  });
}

}  // namespace kvtide::session
