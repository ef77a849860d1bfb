// Sessions and their branches: who is who, what each waits for, and when it will want its blocks again.
//
// A session is one agent conversation under a client's name, or one found by lineage alone (derived). Its branches are continuations
// that differ: sub-agents under one id, edits, retries. Lifecycle moves by facts (hints) and, without them, by what every server sees:
// finish reason, tool names, prompts that extend or replace a frontier, silence. Pauses are learned per tenant and per tool: one session's
// few pauses say less about its next one than the distribution of all.
//
// Threading: confined to the loop. Never blocks. Bounded: sessions_max sessions, branches_max branches each.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/eviction_policy.h"
#include "policy/gap_histogram.h"
#include "session/types.h"

namespace kvtide::session {

/// What an idle branch waits for.
enum class Wait : uint8_t { kNone, kTool, kUser };

struct Branch {
  bool live = false;
  SessionId session;
  std::vector<BlockId> path;     // full blocks of its frontier; the branch claims each
  int32_t tokens = 0;            // of the frontier: prompt and reply
  int32_t running = 0;           // requests between arrival and finish
  Wait wait = Wait::kNone;
  TimeNs waiting_since_ns = 0;
  TimeNs expected_ns = 0;        // a client said: next use then; 0 = nobody did
  std::string tool;              // it waits for, when known
};

/// An action that waits for the running turn.
struct DeferredAction {
  hint::Action action;
  hint::Receipt receipt;
  uint32_t generation = 0;
  int64_t turns = 0;             // of the session when it arrived
};

struct Session {
  bool live = false;
  std::string tenant;
  std::string name;
  std::string parent;            // name; empty: a root
  bool derived = false;
  bool ended = false;
  uint32_t generation = 1;
  int32_t running = 0;
  int64_t turns = 0;             // started
  TimeNs last_active_ns = 0;
  TimeNs retain_until_ns = 0;
  std::vector<BranchId> branches;
  std::vector<DeferredAction> deferred;
  int64_t prompt_tokens_total = 0;
  int64_t reused_tokens_total = 0;
  int32_t prompt_tokens = 0;     // of the newest prompt
};

class Sessions final : public policy::Forecasts {
 public:
  Sessions(int32_t sessions_max, int32_t branches_max) : sessions_max_(sessions_max), branches_max_(branches_max) {}

  Session& at(SessionId id) { return sessions_[id.value]; }
  const Session& at(SessionId id) const { return sessions_[id.value]; }
  Branch& branch(BranchId id) { return branches_[id.value]; }
  const Branch& branch(BranchId id) const { return branches_[id.value]; }

  SessionId find(std::string_view tenant, std::string_view name) const;
  /// Names of the live sessions whose parent this is. O(sessions).
  std::vector<SessionId> children(SessionId id) const;
  /// `id` and everything below it, parents first. Safe on cycles.
  std::vector<SessionId> tree(SessionId id) const;

  /// A new session, or an invalid id when the table is full of active ones. The caller must first have made room (see pick_forgettable).
  SessionId create(const std::string& tenant, const std::string& name, bool derived, TimeNs now_ns);
  BranchId add_branch(SessionId id);
  /// REQUIRES: its path is empty (claims released) and nothing runs on it.
  void remove_branch(BranchId id);
  /// REQUIRES: no branches.
  void remove(SessionId id);

  bool full() const { return live_ >= sessions_max_; }
  /// The session that is missed least when the table is full: ended, then derived, then longest idle; invalid when all are active.
  SessionId pick_forgettable() const;
  /// The idle branch of `id` to give up when it has too many; invalid while under the limit.
  BranchId pick_surplus_branch(SessionId id) const;

  /// The branch used last, or an invalid id.
  BranchId newest_branch(SessionId id) const;

  /// A turn of `branch` arrives: a pause ends, and its length is learned.
  void begin_turn(BranchId branch, TimeNs now_ns);
  /// The pause that ends now was one for `tool`: the prompt brings its result.
  void note_tool(BranchId branch, const std::string& tool);
  void end_turn(BranchId branch, Finish finish, TimeNs now_ns);
  /// A client says that `branch` waits for `tool` about `expected_ns`.
  void pause(BranchId branch, const std::string& tool, std::optional<base::DurationNs> expected_ns, TimeNs now_ns);

  policy::Forecast forecast(BranchId branch, TimeNs now_ns) const override;
  std::string_view state_name(SessionId id, TimeNs now_ns) const;

  int32_t count() const { return live_; }

  template <typename F>
  void for_each(F&& f) const {
    for (uint32_t i = 0; i < sessions_.size(); ++i) {
      if (sessions_[i].live) f(SessionId(i), sessions_[i]);
    }
  }

 private:
  struct TenantGaps {
    policy::GapHistogram tool{policy::GapHistogram::Prior::kTool};
    policy::GapHistogram user{policy::GapHistogram::Prior::kUser};
  };
  const policy::GapHistogram& gaps_of(const Session& session, const Branch& branch) const;

  const int32_t sessions_max_;
  const int32_t branches_max_;
  std::deque<Session> sessions_;     // stable addresses; ids are indices and are reused
  std::deque<Branch> branches_;
  std::vector<uint32_t> free_sessions_;
  std::vector<uint32_t> free_branches_;
  std::unordered_map<std::string, SessionId> by_name_;  // tenant, NUL, name
  std::unordered_map<std::string, TenantGaps> tenant_gaps_;
  std::unordered_map<std::string, policy::GapHistogram> tool_gaps_;  // tenant, NUL, tool; bounded
  int32_t live_ = 0;
};

}  // namespace kvtide::session
