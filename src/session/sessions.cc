#include "session/sessions.h"

#include <algorithm>

#include "base/check.h"

namespace kvtide::session {
namespace {

constexpr double kRetainBoost = 4;        // what `retain` is worth: bounded, never a pin
constexpr double kIdleAfterS = 300;       // silence after which a waiting session is shown as idle
constexpr size_t kGapsMax = 4096;         // tenants, and tools over all tenants, whose pauses are learned
constexpr int kToolSamplesMin = 8;        // before a tool's own histogram is trusted

std::string joined(std::string_view tenant, std::string_view name) {
  std::string key;
  key.reserve(tenant.size() + 1 + name.size());
  key.append(tenant);
  key.push_back('\0');
  key.append(name);
  return key;
}

double seconds(base::DurationNs ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

SessionId Sessions::find(std::string_view tenant, std::string_view name) const {
  const auto it = by_name_.find(joined(tenant, name));
  return it == by_name_.end() ? SessionId{} : it->second;
}

std::vector<SessionId> Sessions::children(SessionId id) const {
  std::vector<SessionId> found;
  const Session& parent = at(id);
  for_each([&](SessionId other, const Session& s) {
    if (other != id && s.parent == parent.name && s.tenant == parent.tenant) found.push_back(other);
  });
  return found;
}

std::vector<SessionId> Sessions::tree(SessionId id) const {
  std::vector<SessionId> all{id};
  for (size_t i = 0; i < all.size(); ++i) {
    for (SessionId child : children(all[i])) {
      if (std::find(all.begin(), all.end(), child) == all.end()) all.push_back(child);
    }
  }
  return all;
}

SessionId Sessions::create(const std::string& tenant, const std::string& name, bool derived, TimeNs now_ns) {
  if (full()) return {};
  uint32_t id;
  if (free_sessions_.empty()) {
    id = static_cast<uint32_t>(sessions_.size());
    sessions_.emplace_back();
  } else {
    id = free_sessions_.back();
    free_sessions_.pop_back();
  }
  Session& session = sessions_[id];
  session = Session{};
  session.live = true;
  session.tenant = tenant;
  session.name = name;
  session.derived = derived;
  session.last_active_ns = now_ns;
  by_name_[joined(tenant, name)] = SessionId(id);
  ++live_;
  return SessionId(id);
}

BranchId Sessions::add_branch(SessionId id) {
  uint32_t b;
  if (free_branches_.empty()) {
    b = static_cast<uint32_t>(branches_.size());
    branches_.emplace_back();
  } else {
    b = free_branches_.back();
    free_branches_.pop_back();
  }
  branches_[b] = Branch{};
  branches_[b].live = true;
  branches_[b].session = id;
  at(id).branches.push_back(BranchId(b));
  return BranchId(b);
}

void Sessions::remove_branch(BranchId id) {
  Branch& gone = branch(id);
  KV_CHECK(gone.live && gone.path.empty() && gone.running == 0);
  auto& list = at(gone.session).branches;
  list.erase(std::find(list.begin(), list.end(), id));
  gone.live = false;
  free_branches_.push_back(id.value);
}

void Sessions::remove(SessionId id) {
  Session& gone = at(id);
  KV_CHECK(gone.live && gone.branches.empty());
  by_name_.erase(joined(gone.tenant, gone.name));
  gone.live = false;
  --live_;
  free_sessions_.push_back(id.value);
}

SessionId Sessions::pick_forgettable() const {
  SessionId best;
  auto key = [](const Session& s) { return std::tuple(!s.ended, !s.derived, s.last_active_ns); };
  for_each([&](SessionId id, const Session& s) {
    if (s.running > 0) return;
    if (!best.valid() || key(s) < key(at(best))) best = id;
  });
  return best;
}

BranchId Sessions::pick_surplus_branch(SessionId id) const {
  if (static_cast<int32_t>(at(id).branches.size()) < branches_max_) return {};
  BranchId oldest;
  for (BranchId b : at(id).branches) {
    if (branch(b).running > 0) continue;
    if (!oldest.valid() || branch(b).waiting_since_ns < branch(oldest).waiting_since_ns) oldest = b;
  }
  return oldest;
}

BranchId Sessions::newest_branch(SessionId id) const {
  BranchId newest;
  for (BranchId b : at(id).branches) {
    const bool newer = !newest.valid() || branch(b).running > branch(newest).running ||
                       (branch(b).running == branch(newest).running && branch(b).waiting_since_ns >= branch(newest).waiting_since_ns);
    if (newer) newest = b;
  }
  return newest;
}

void Sessions::begin_turn(BranchId id, TimeNs now_ns) {
  Branch& b = branch(id);
  Session& session = at(b.session);
  if (b.running == 0 && b.wait != Wait::kNone) {
    const double gap_s = seconds(now_ns - b.waiting_since_ns);
    if (tenant_gaps_.size() < kGapsMax || tenant_gaps_.contains(session.tenant)) {
      TenantGaps& gaps = tenant_gaps_[session.tenant];
      (b.wait == Wait::kTool ? gaps.tool : gaps.user).note(gap_s);
    }
    if (b.wait == Wait::kTool && !b.tool.empty() && (tool_gaps_.size() < kGapsMax || tool_gaps_.contains(joined(session.tenant, b.tool)))) {
      tool_gaps_[joined(session.tenant, b.tool)].note(gap_s);
    }
  }
  b.wait = Wait::kNone;
  b.expected_ns = 0;
  b.tool.clear();
  ++b.running;
  ++session.running;
  ++session.turns;
  session.ended = false;
  session.last_active_ns = now_ns;
}

void Sessions::note_tool(BranchId id, const std::string& tool) {
  Branch& b = branch(id);
  if (b.running > 0 || b.wait == Wait::kNone) return;
  b.wait = Wait::kTool;
  if (b.tool.empty()) b.tool = tool;
}

void Sessions::end_turn(BranchId id, Finish finish, TimeNs now_ns) {
  Branch& b = branch(id);
  Session& session = at(b.session);
  KV_CHECK(b.running > 0 && session.running > 0);
  --b.running;
  --session.running;
  b.wait = finish == Finish::kToolCalls ? Wait::kTool : Wait::kUser;
  b.waiting_since_ns = now_ns;
  session.last_active_ns = now_ns;
}

void Sessions::pause(BranchId id, const std::string& tool, std::optional<base::DurationNs> expected_ns, TimeNs now_ns) {
  Branch& b = branch(id);
  b.wait = Wait::kTool;
  if (b.waiting_since_ns == 0) b.waiting_since_ns = now_ns;
  b.tool = tool;
  b.expected_ns = expected_ns ? now_ns + std::max<base::DurationNs>(*expected_ns, base::kMillisecond) : 0;
}

// The most specific histogram with enough samples.
const policy::GapHistogram& Sessions::gaps_of(const Session& session, const Branch& b) const {
  static const TenantGaps kUnknown;
  if (b.wait == Wait::kTool && !b.tool.empty()) {
    const auto it = tool_gaps_.find(joined(session.tenant, b.tool));
    if (it != tool_gaps_.end() && it->second.samples() >= kToolSamplesMin) return it->second;
  }
  const auto it = tenant_gaps_.find(session.tenant);
  const TenantGaps& gaps = it == tenant_gaps_.end() ? kUnknown : it->second;
  return b.wait == Wait::kTool ? gaps.tool : gaps.user;
}

policy::Forecast Sessions::forecast(BranchId id, TimeNs now_ns) const {
  const Branch& b = branch(id);
  const Session& session = at(b.session);
  policy::Forecast f;
  f.boost = session.retain_until_ns > now_ns ? kRetainBoost : 1;
  if (b.running > 0) {
    f.wait_s = 1e-3;
  } else if (b.expected_ns != 0) {
    // Once the announced time has passed, the pause is expected to last as long again as it is late.
    f.wait_s = std::max(0.05, std::abs(seconds(b.expected_ns - now_ns)));
  } else {
    f.wait_s = gaps_of(session, b).remaining_s(seconds(now_ns - b.waiting_since_ns));
  }
  return f;
}

std::string_view Sessions::state_name(SessionId id, TimeNs now_ns) const {
  const Session& session = at(id);
  if (session.running > 0) return "active";
  if (session.ended) return "ended";
  const BranchId newest = newest_branch(id);
  if (!newest.valid() || seconds(now_ns - session.last_active_ns) > kIdleAfterS) return "idle";
  return branch(newest).wait == Wait::kTool ? "waiting_tool" : "waiting_user";
}

}  // namespace kvtide::session
