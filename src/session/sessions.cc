#include "session/sessions.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace kvtide::session {
namespace {

using policy::Idea;

constexpr double kRetainBoost = 4;   // what `retain` is worth: bounded, never a pin
constexpr double kIdleAfterS = 300;  // silence after which a waiting session is shown as idle
constexpr size_t kTrustMax =
    4096;  // judgements of announcements, by tenant, kind and length; later tenants share one of each kind and length
constexpr double kTrustKeep = 0.98;  // of the evidence at each new pause
constexpr double kTrustStep = 2;     // most that one pause says
constexpr double kLogOddsMax = 8;
constexpr double kEndsKeep = 0.9;  // of the record of announced ends at each new one
constexpr double kEndsTakenBackShare = 0.2;
constexpr size_t kPausedLatelyMax = 256;
constexpr double kNewcomerS[] = {1, 3, 10};  // after the start of a pause
constexpr double kRunningPerS = 1e4;         // worth of what a running turn holds, above any pause
constexpr uint32_t kObservedATime = 512;

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
  session.life = next_stamp();
  by_name_[joined(tenant, name)] = SessionId(id);
  ++live_;
  return SessionId(id);
}

void Sessions::begin_life(SessionId id) {
  ++at(id).generation;
  at(id).life = next_stamp();
}

std::string Sessions::root_name(SessionId id) const {
  constexpr int kDepthMax = 64;
  for (int depth = 0; depth < kDepthMax && !at(id).parent.empty(); ++depth) {
    const SessionId parent = find(at(id).tenant, at(id).parent);
    if (!parent.valid()) return at(id).parent;
    id = parent;
  }
  return at(id).name;
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

// The kind of pause: what it was seen to wait for, of which tenant, for which tool, at which pace so far. The more special kinds lean on
// the general ones.
void Sessions::classify(Branch& b) {
  using policy::ReturnModel;
  const Session& session = at(b.session);
  ReturnModel::ClassId kind = b.seen == Wait::kTool ? ReturnModel::kTool : ReturnModel::kUser;
  kind = model_.child(kind, session.tenant);
  if (ideas_.has(Idea::kTool) && b.wait == Wait::kTool && !b.tool.empty()) kind = model_.child(kind, b.tool);
  if (b.left_behind > 0) kind = model_.child(kind, "left behind " + std::to_string(b.left_behind));
  if (b.newcomer > 0) kind = model_.child(kind, "newcomer " + std::to_string(b.newcomer));
  if (ideas_.has(Idea::kCutShort) && b.cut_short) kind = model_.child(kind, "cut short");
  // A long reply is read for longer, and tools that write files take longer than those that look.
  if (ideas_.has(Idea::kReply))
    kind = model_.child(kind, "reply " + std::to_string(std::bit_width(static_cast<uint32_t>(std::max(b.reply_tokens, 0)))));
  const int32_t pace = b.pauses == 0 ? -99 : static_cast<int32_t>(std::clamp(std::floor(b.pace), -3.0, 9.0));
  b.kind = ideas_.has(Idea::kPace) ? model_.child(kind, std::to_string(pace)) : kind;
}

// Words about long pauses are judged apart from those about short ones: the short ones are many, and whatever one says of them is half
// right.
uint32_t Sessions::judge(const std::string& tenant, bool resume, base::DurationNs length_ns) {
  const double log10_s = std::log10(std::max(seconds(length_ns), 1e-3));
  const char size = static_cast<char>('0' + std::clamp(static_cast<int>(std::floor(log10_s)), 0, 3));
  std::string key{resume ? 'r' : 'p', size};
  key += tenant;
  if (!judges_.contains(key) && judges_.size() >= kTrustMax) key.resize(2);
  const auto [it, fresh] = judges_.try_emplace(key, static_cast<uint32_t>(trusts_.size()));
  if (fresh) trusts_.push_back({model_.child(model_.child(policy::ReturnModel::kAnnounced, resume ? "resume" : "pause"), tenant)});
  return it->second;
}

void Sessions::note_end(SessionId id, std::optional<BlockKey> end_key) {
  Session& session = at(id);
  if (end_key) session.end_key = end_key;
  if (!ends_.contains(session.tenant) && ends_.size() >= kTrustMax) return;
  Ends& ends = ends_[session.tenant];
  ends.told = kEndsKeep * ends.told + 1;
  ends.taken_back *= kEndsKeep;
}

void Sessions::judge_end(SessionId id, std::span<const BlockKey> keys) {
  Session& session = at(id);
  if (!session.end_key) return;
  // A new conversation under an old name takes nothing back.
  const bool goes_on = std::find(keys.begin(), keys.end(), *session.end_key) != keys.end();
  if (const auto it = ends_.find(session.tenant); goes_on && it != ends_.end()) it->second.taken_back += 1;
  session.end_key.reset();
}

bool Sessions::believes_ends(const std::string& tenant) const {
  const auto it = ends_.find(tenant);
  return it == ends_.end() || it->second.taken_back <= 1 + kEndsTakenBackShare * it->second.told;
}

// A pause ended: its length is learned, and what was announced is judged by it.
void Sessions::learn(Branch& b, TimeNs now_ns) {
  const double gap_s = seconds(now_ns - b.waiting_since_ns);
  for (const bool resume : {false, true}) {
    const Announcement& told = resume ? b.resume : b.pause;
    if (told.length_ns == 0) continue;
    Trust& t = trusts_[told.judge];
    const double ratio = seconds(now_ns - told.since_ns) / seconds(told.length_ns);
    // What usually was left of a pause that had lasted as long when it was announced.
    const double before_s = seconds(told.since_ns - b.waiting_since_ns);
    const double usual = model_.log_likelihood(b.kind, gap_s) - model_.log_survival(b.kind, before_s);
    const double evidence = model_.log_likelihood(t.kind, ratio) - usual;
    t.log_odds = std::clamp(kTrustKeep * t.log_odds + std::clamp(evidence, -kTrustStep, kTrustStep), -kLogOddsMax, kLogOddsMax);
    model_.ended(t.kind, ratio, told.counted);
  }
  model_.ended(b.kind, gap_s, b.counted);
  const double log_gap = std::log2(std::max(gap_s, 0.01));
  b.pace = b.pauses == 0 ? log_gap : b.pace + 0.3 * (log_gap - b.pace);
  ++b.pauses;
}

void Sessions::begin_turn(BranchId id, TimeNs now_ns) {
  Branch& b = branch(id);
  Session& session = at(b.session);
  if (b.running == 0 && b.wait != Wait::kNone) learn(b, now_ns);
  b.wait = Wait::kNone;
  b.pause = {};
  b.resume = {};
  b.tool.clear();
  ++b.running;
  ++session.running;
  ++session.turns;
  b.last_turn = session.last_turn = ++turns_begun_;
  session.ended = false;
  session.last_active_ns = now_ns;
}

void Sessions::note_tool(BranchId id, const std::string& tool) {
  Branch& b = branch(id);
  if (b.running > 0 || b.wait == Wait::kNone) return;
  b.wait = b.seen = Wait::kTool;
  if (b.tool.empty()) b.tool = tool;
  classify(b);
}

void Sessions::end_turn(BranchId id, Finish finish, int32_t reply_tokens, TimeNs now_ns) {
  Branch& b = branch(id);
  Session& session = at(b.session);
  KV_CHECK(b.running > 0 && session.running > 0);
  --b.running;
  --session.running;
  b.wait = b.seen = finish == Finish::kToolCalls ? Wait::kTool : Wait::kUser;
  b.cut_short = finish == Finish::kLength || finish == Finish::kCancelled || finish == Finish::kError;
  b.reply_tokens = reply_tokens;
  b.waiting_since_ns = now_ns;
  b.newcomer = 0;
  b.left_behind = 0;
  b.counted = 0;
  session.last_active_ns = now_ns;
  classify(b);
  paused_lately_.push_back({id, now_ns});
  if (paused_lately_.size() > kPausedLatelyMax) paused_lately_.pop_front();
}

// One newcomer follows one end: only the pause that began last before it is marked, with others of the same moment.
void Sessions::note_newcomer(const std::string& tenant, TimeNs now_ns) {
  if (!ideas_.has(Idea::kNewcomer)) return;
  std::optional<TimeNs> nearest_ns;
  for (auto it = paused_lately_.rbegin(); it != paused_lately_.rend(); ++it) {
    const auto [id, since_ns] = *it;
    const double delay_s = seconds(now_ns - since_ns);
    if (delay_s >= kNewcomerS[2] || (nearest_ns && since_ns != *nearest_ns)) return;
    Branch& b = branches_[id.value];
    const bool same_pause = b.live && b.running == 0 && b.wait != Wait::kNone && b.waiting_since_ns == since_ns;
    if (!same_pause || b.newcomer > 0 || at(b.session).tenant != tenant) continue;
    nearest_ns = since_ns;
    observe_pause(b, now_ns);
    b.newcomer = delay_s < kNewcomerS[0] ? 1 : delay_s < kNewcomerS[1] ? 2 : 3;
    classify(b);
  }
}

void Sessions::note_left_behind(BranchId id, BranchId by, size_t common, size_t frontier, bool shorter, TimeNs now_ns) {
  Branch& b = branch(id);
  if (common > 0 && branch(by).session == b.session) {  // its session came back; what shares nothing may be a helper of its own
    b.pause = {};
    b.resume = {};
  }
  const auto quarters = static_cast<int32_t>(4 * common / std::max<size_t>(frontier, 1));
  const int32_t kind = 1 + (common > 0 ? 1 + quarters : 0) + (shorter ? 6 : 0);
  const bool told_more = b.left_behind > 0 && (b.left_behind - 1) % 6 >= (kind - 1) % 6;
  if (!ideas_.has(Idea::kLeftBehind) || told_more) return;
  observe_pause(b, now_ns);
  b.left_behind = kind;
  classify(b);
}

void Sessions::pause(BranchId id, const std::string& tool, std::optional<base::DurationNs> expected_ns, TimeNs now_ns) {
  Branch& b = branch(id);
  b.wait = Wait::kTool;
  if (b.waiting_since_ns == 0) b.waiting_since_ns = now_ns;
  b.tool = tool;
  classify(b);
  const base::DurationNs length_ns = expected_ns ? std::max<base::DurationNs>(*expected_ns, base::kMillisecond) : 0;
  b.pause = {now_ns, length_ns, 0, judge(at(b.session).tenant, false, length_ns)};
}

void Sessions::resume(BranchId id, base::DurationNs in_ns, TimeNs now_ns) {
  Branch& b = branch(id);
  const base::DurationNs length_ns = std::max<base::DurationNs>(in_ns, base::kMillisecond);
  b.resume = {now_ns, length_ns, 0, judge(at(b.session).tenant, true, length_ns)};
}

// Before a pause becomes of another kind, what was seen of it belongs to the kind that it was: a kind has it from then on.
void Sessions::observe_pause(Branch& b, TimeNs now_ns) {
  if (ideas_.has(Idea::kUnfinished)) b.counted = model_.survived(b.kind, seconds(now_ns - b.waiting_since_ns), b.counted);
}

void Sessions::observe(TimeNs now_ns) {
  if (!ideas_.has(Idea::kUnfinished)) return;
  const auto count = static_cast<uint32_t>(std::min<size_t>(kObservedATime, branches_.size()));
  for (uint32_t i = 0; i < count; ++i) {
    observed_ = (observed_ + 1) % static_cast<uint32_t>(branches_.size());
    Branch& b = branches_[observed_];
    if (!b.live || b.running > 0 || b.wait == Wait::kNone) continue;
    observe_pause(b, now_ns);
    for (const bool resume : {false, true}) {
      Announcement& told = resume ? b.resume : b.pause;
      if (told.length_ns == 0) continue;
      told.counted = model_.survived(trusts_[told.judge].kind, seconds(now_ns - told.since_ns) / seconds(told.length_ns), told.counted);
    }
  }
}

policy::Forecast Sessions::forecast(BranchId id, TimeNs now_ns) const {
  const Branch& b = branch(id);
  const Session& session = at(b.session);
  policy::Forecast f;
  // What the budget does not cover dilutes the boost, so that the sum over a tenant's blocks is bounded.
  f.boost = session.retain_until_ns > now_ns ? 1 + (kRetainBoost - 1) * session.retain_share : 1;
  f.protected_until_ns = session.retain_share >= 1 ? session.retain_until_ns : 0;
  if (b.running > 0) {
    f.rate_per_s = kRunningPerS;
    return f;
  }
  f.rate_per_s = model_.value(b.kind, seconds(now_ns - b.waiting_since_ns));
  const bool resume = b.resume.length_ns > 0 && (b.pause.length_ns == 0 || b.resume.since_ns >= b.pause.since_ns);
  const Announcement& told = resume ? b.resume : b.pause;
  if (told.length_ns == 0) return f;
  const Trust& t = trusts_[told.judge];
  const double weight = ideas_.has(Idea::kTrust) ? 1 / (1 + std::exp(-t.log_odds)) : 1;
  const double length_s = seconds(told.length_ns);
  const double announced = model_.value(t.kind, seconds(now_ns - told.since_ns) / length_s) / length_s;
  f.rate_per_s = weight * announced + (1 - weight) * f.rate_per_s;
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
