// Hints, receipts, snapshots.
#include <algorithm>

#include "serving/loop.h"

namespace kvtide::serving {
namespace {

const std::string kMadeIdPrefix = "kv-";  // of hint ids that clients left out; they may send none of these

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kToolCalls: return "tool_calls";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "error";
}

std::string_view miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone: return "none";
    case MissReason::kFirstDifference: return "first_difference";
    case MissReason::kEvicted: return "evicted";
    case MissReason::kNeverStored: return "never_stored";
    case MissReason::kOtherSalt: return "other_salt";
    case MissReason::kNoCheckpoint: return "no_checkpoint";
    case MissReason::kSlowerThanRecompute: return "slower_than_recompute";
    case MissReason::kFailedLoad: return "failed_load";
  }
  return "none";
}

void Loop::count_hint(const std::string& dialect, const hint::Receipt& receipt) {
  std::string key = dialect + "/" + receipt.verb + "/";
  key += hint::outcome_name(receipt.status);
  ++hint_counts_[key];
}

hint::Receipt Loop::run_action(const std::string& tenant, const std::string& dialect, hint::Action action) {
  if (!action.hint_id.empty()) {
    if (auto known = receipts_.duplicate_of(tenant, action.hint_id)) {
      count_hint(dialect, *known);
      return *known;
    }
    if (action.hint_id.starts_with(kMadeIdPrefix)) {
      // It is not logged: an action that gets this id later would be taken for it.
      hint::Receipt refused;
      refused.hint_id = action.hint_id;
      refused.verb = hint::verb_name(action.verb);
      refused.session_id = action.identity.session_id;
      refused.status = hint::Outcome::kRejected;
      refused.reason = "ids that begin with kv- are made by the server";
      count_hint(dialect, refused);
      return refused;
    }
  } else {
    action.hint_id = kMadeIdPrefix + std::to_string(next_hint_++);
  }
  hint::Receipt receipt;
  {
    const CoreTimer timer(*this);
    receipt = sam_->hint(tenant, action, clock_.now());
  }
  ++changes_;
  copies_.run();
  // A move whose copies were done at once is answered as done.
  if (receipt.status == hint::Outcome::kDeferred) {
    if (auto done = sam_->take_receipt(tenant, receipt.hint_id)) receipt = std::move(*done);
  }
  count_hint(dialect, receipt);
  receipts_.put(tenant, receipt);
  return receipt;
}

std::vector<hint::Receipt> Loop::run_actions(const std::string& tenant, hint::Hints& hints) {
  std::vector<hint::Receipt> receipts;
  for (hint::Action& action : hints.actions) {
    if (action.identity.session_id.empty()) action.identity = hints.identity;
    receipts.push_back(run_action(tenant, hints.dialect, action));
  }
  return receipts;
}

void Loop::log_completed_receipts() {
  for (session::Sam::CompletedReceipt& done : sam_->take_receipts()) {
    count_hint("deferred", done.receipt);
    receipts_.put(done.tenant, std::move(done.receipt));
  }
}

base::Status Loop::manage(const std::string& tenant, hint::Hints hints, ReceiptsCallback done) {
  return post([this, tenant, hints = std::move(hints), done = std::move(done)]() mutable {
    std::vector<hint::Receipt> receipts = run_actions(tenant, hints);
    // A prefetch that fits the copy budget is answered as done; a longer one as deferred, and goes on behind.
    if (!decoding()) run_copies();  // else the next turn's budget does it: many calls in one turn must not stall decoders
    log_completed_receipts();
    for (hint::Receipt& receipt : receipts) {
      if (receipt.status != hint::Outcome::kDeferred) continue;
      if (auto newest = receipts_.find(tenant, receipt.hint_id)) receipt = std::move(*newest);
    }
    done(std::move(receipts));
  });
}

base::Status Loop::find_receipt(const std::string& tenant, std::string hint_id, std::function<void(std::optional<hint::Receipt>)> done) {
  return post([this, tenant, hint_id = std::move(hint_id), done = std::move(done)] { done(receipts_.find(tenant, hint_id)); });
}

void Loop::note_tool_calls(RequestId id, std::vector<std::string> tools) {
  // Lost when the inbox is full: the pause is then taken for a person's.
  (void)post([this, id, tools = std::move(tools)] {
    const auto it = recent_.find(id);
    if (it == recent_.end()) return;
    sam_->note_tool_calls(it->second, tools);
    if (options_.request_log != nullptr && !tools.empty()) options_.request_log->called_tools(id, tools);
  });
}

SessionSnapshot Loop::snapshot_session(session::SessionId id) const {
  const session::Session& s = sam_->sessions().at(id);
  const base::TimeNs now_ns = clock_.now();
  SessionSnapshot out;
  out.tenant = s.tenant;
  out.session_id = s.name;
  out.parent_id = s.parent;
  out.derived = s.derived;
  out.generation = s.generation;
  out.state = sam_->sessions().state_name(id, now_ns);
  out.branches = static_cast<int32_t>(s.branches.size());
  out.turns = s.turns;
  out.prompt_tokens = s.prompt_tokens;
  out.blocks_device = sam_->blocks_in(id, session::Tier::kDevice);
  out.blocks_host = sam_->blocks_in(id, session::Tier::kHost);
  for (session::BranchId b : s.branches) out.blocks_claimed += static_cast<int64_t>(sam_->sessions().branch(b).path.size());
  out.prompt_tokens_total = s.prompt_tokens_total;
  out.reused_tokens_total = s.reused_tokens_total;
  out.idle_s = s.running > 0 ? 0 : static_cast<double>(now_ns - s.last_active_ns) * 1e-9;
  const session::BranchId newest = sam_->sessions().newest_branch(id);
  if (newest.valid() && s.running == 0) out.predicted_next_use_s = 1 / sam_->sessions().forecast(newest, now_ns).rate_per_s;
  for (session::SessionId child : sam_->sessions().children(id)) out.children.push_back(sam_->sessions().at(child).name);
  return out;
}

base::Status Loop::sessions(SessionQuery query, std::function<void(std::vector<SessionSnapshot>, size_t total)> done) {
  return post([this, query = std::move(query), done = std::move(done)] {
    std::vector<session::SessionId> found;
    sam_->sessions().for_each([&](session::SessionId id, const session::Session& s) {
      if (!query.tenant.empty() && s.tenant != query.tenant) return;
      if (!query.session_id.empty() && s.name != query.session_id) return;
      found.push_back(id);
    });
    std::sort(found.begin(), found.end(), [&](session::SessionId a, session::SessionId b) {
      return sam_->sessions().at(a).last_active_ns > sam_->sessions().at(b).last_active_ns;
    });
    std::vector<SessionSnapshot> page;
    for (size_t i = query.offset; i < found.size() && page.size() < query.limit; ++i) page.push_back(snapshot_session(found[i]));
    done(std::move(page), found.size());
  });
}

base::Status Loop::tiers(std::function<void(std::vector<TierSnapshot>)> done) {
  return post([this, done = std::move(done)] {
    const engine::EngineInfo& info = engine_->info();
    TierSnapshot device;
    device.name = "device";
    device.budget_bytes = info.device_tokens * info.token_bytes;
    device.blocks = static_cast<int64_t>(sam_->blocks().copies_in(session::Tier::kDevice));
    device.used_bytes = device.blocks * info.block_bytes;
    device.peak_bytes = device_cells_peak_ * info.token_bytes;
    device.leases = static_cast<int64_t>(sam_->sequences().busy_count());
    std::vector<TierSnapshot> all{device};
    if (host_ != nullptr) {
      const tier::TierStats stats = host_->stats();
      TierSnapshot host;
      host.name = "host";
      host.budget_bytes = stats.budget_bytes;
      host.used_bytes = stats.used_bytes;
      host.peak_bytes = stats.peak_bytes;
      host.blocks = stats.slots - stats.slots_free;
      host.leases = stats.leases;
      host.corrupt_loads = stats.corrupt_loads;
      all.push_back(host);
    }
    done(std::move(all));
  });
}

ServiceStats Loop::snapshot_stats() const {
  ServiceStats out = totals_;
  out.requests_running = static_cast<int64_t>(running_.size());
  out.requests_waiting = static_cast<int64_t>(waiting_line_.size());
  out.requests_rejected = rejected_;
  out.seqs = engine_->info().seqs;
  out.seqs_used = sam_->sequences().busy_count();
  out.cells_used = engine_->cells_used();
  out.sessions = sam_->sessions().count();
  out.blocks = static_cast<int64_t>(sam_->blocks().size());
  const CopyTotals& copies = copies_.totals();
  out.blocks_copied_out = copies.blocks_out;
  out.blocks_copied_in = copies.blocks_in;
  out.bytes_copied_out = copies.bytes_out;
  out.bytes_copied_in = copies.bytes_in;
  const session::SamCounters& counters = sam_->counters();
  out.evicted_device_blocks = counters.evicted_device_blocks;
  out.evicted_host_blocks = counters.evicted_host_blocks;
  if (host_ != nullptr) {
    const tier::TierStats stats = host_->stats();
    out.byte_mismatches = stats.corrupt_loads;
    out.leases = stats.leases;
  }
  out.hints.assign(hint_counts_.begin(), hint_counts_.end());
  out.regret = shadow_.report(clock_.now());
  return out;
}

base::Status Loop::stats(std::function<void(ServiceStats)> done) {
  return post([this, done = std::move(done)] { done(snapshot_stats()); });
}

}  // namespace kvtide::serving
