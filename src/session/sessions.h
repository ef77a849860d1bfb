// Sessions and their branches: who is who, what each waits for, and when it will want its blocks again.
//
// A session is one agent conversation under a client's name, or one found by lineage alone (derived). Its branches are continuations
// that differ: sub-agents under one id, edits, retries. Lifecycle moves by facts (hints) and, without them, by what every server sees:
// finish reason, tool names, prompts that extend or replace a frontier, silence. Pauses are learned per tenant, tool and pace of the session
// (policy/return_model.h). What clients announce is weighed by how well it predicted so far: a client that lies is soon not listened to.
//
// Threading: confined to the loop. Never blocks. Bounded: sessions_max sessions, branches_max branches each.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/eviction_policy.h"
#include "policy/ideas.h"
#include "policy/return_model.h"
#include "session/types.h"

namespace kvtide::session {

/// What an idle branch waits for.
enum class Wait : uint8_t { kNone, kTool, kUser };

/// A client said that a branch will be used again `length_ns` after `since_ns`.
struct Announcement {
  TimeNs since_ns = 0;
  base::DurationNs length_ns = 0;  // 0: nobody said anything
  size_t counted = 0;
  uint32_t judge = 0;              // whose record says what such words are worth
};

struct Branch {
  bool live = false;
  SessionId session;
  std::vector<BlockId> path;     // full blocks of its frontier; the branch claims each
  std::vector<uint64_t> lost;    // blocks of the frontier behind `path`, deepest first, as index::short_key(): no tier has a copy of them
  int32_t tokens = 0;            // of the frontier: prompt and reply
  int32_t own_from = 0;          // block in which its first reply began: what comes before it others may send too
  int32_t running = 0;           // requests between arrival and finish
  int64_t last_turn = 0;         // turns_begun() when its newest turn began
  Wait wait = Wait::kNone;
  Wait seen = Wait::kNone;       // the same without what clients say
  TimeNs waiting_since_ns = 0;
  std::string tool;              // it waits for, when known
  int32_t newcomer = 0;          // 1..: a new session began so soon after its turn: see Sessions::note_newcomer
  int32_t left_behind = 0;       // 1..: another prompt came that shares so much of it: see Sessions::note_left_behind
  bool cut_short = false;        // its last reply did not end by itself
  int32_t reply_tokens = 0;      // of its last reply
  policy::ReturnModel::ClassId kind = policy::ReturnModel::kUser;  // of the pause
  size_t counted = 0;            // how much of the pause the model has seen: see ReturnModel::survived
  double pace = 0;               // running mean of log2 of its pauses in seconds
  int32_t pauses = 0;
  Announcement pause;            // what a client expects, at the end of a turn
  Announcement resume;           // and shortly before the next one (prefetch, resume)
};

/// An action that waits for the turns that ran when it arrived.
struct DeferredAction {
  hint::Action action;
  hint::Receipt receipt;
  int64_t turns = 0;             // of the session when it arrived
  int64_t at_turn = 0;           // turns_begun() when it arrived: what began later is none of its business
  std::vector<RequestId> waits_for;
};

struct Session {
  bool live = false;
  std::string tenant;
  std::string name;
  std::string parent;            // name; empty: a root
  bool derived = false;
  bool ended = false;
  std::optional<BlockKey> end_key;  // where it stood when a client said that it ends
  uint32_t generation = 1;       // of this name, while it is remembered
  uint64_t life = 0;             // of all sessions ever: no two lives have the same
  int32_t running = 0;
  int64_t turns = 0;             // started
  int64_t last_turn = 0;         // turns_begun() when the newest one began
  TimeNs last_active_ns = 0;
  TimeNs retain_until_ns = 0;
  uint64_t retain_order = 0;     // earlier promises are kept first
  double retain_share = 0;       // of its blocks, within the budgets of its tenant and its tree
  std::vector<BranchId> branches;
  std::vector<DeferredAction> deferred;
  int64_t prompt_tokens_total = 0;
  int64_t reused_tokens_total = 0;
  int32_t prompt_tokens = 0;     // of the newest prompt
};

class Sessions final : public policy::Forecasts {
 public:
  Sessions(int32_t sessions_max, int32_t branches_max, policy::Ideas ideas)
      : sessions_max_(sessions_max), branches_max_(branches_max), ideas_(ideas), model_(ideas) {}

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
  /// The id of `id` begins a new life.
  void begin_life(SessionId id);
  uint64_t next_stamp() { return ++stamps_; }
  /// Turns of all sessions that ever began.
  int64_t turns_begun() const { return turns_begun_; }
  /// The name at the top of its tree, as far as it is known. A cycle has no top; some member stands for it.
  std::string root_name(SessionId id) const;
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
  void end_turn(BranchId branch, Finish finish, int32_t reply_tokens, TimeNs now_ns);
  /// A client says that `branch` waits for `tool` about `expected_ns`.
  void pause(BranchId branch, const std::string& tool, std::optional<base::DurationNs> expected_ns, TimeNs now_ns);
  /// A client says that `branch` is used again in `in_ns`.
  void resume(BranchId branch, base::DurationNs in_ns, TimeNs now_ns);
  /// A new root session of `tenant` begins. People and batch runners often start one when another has ended: pauses that had just begun
  /// become a kind of their own, and the model learns whether that says anything.
  void note_newcomer(const std::string& tenant, TimeNs now_ns);
  /// The new branch `by` begins with `common` of the `frontier` blocks of `id`, and with fewer tokens in all if `shorter`. It may be what came
  /// of `id` (a compaction, an edit), or have little to do with it (a sub-agent, a common system prompt): the model learns which kinds return.
  void note_left_behind(BranchId id, BranchId by, size_t common, size_t frontier, bool shorter, TimeNs now_ns);
  /// A client said that the session ends. `end_key`: of the last block of its newest frontier, if there is one.
  void note_end(SessionId id, std::optional<BlockKey> end_key);
  /// A turn with `keys` of this session begins: if its end was announced, and the prompt goes on where it ended, that was not true.
  void judge_end(SessionId id, std::span<const BlockKey> keys);
  /// Whether ends that this tenant announces are mostly ends.
  bool believes_ends(const std::string& tenant) const;
  /// Tells the model of some pauses that still last. Bounded work; call about once a second.
  void observe(TimeNs now_ns);

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
  /// How far announcements of one kind by one tenant predict better than what pauses usually last: log odds.
  struct Trust {
    policy::ReturnModel::ClassId kind = policy::ReturnModel::kAnnounced;
    double log_odds = 1;
  };
  /// Ends announced by one tenant, and how many of these sessions went on. Old ones fade.
  struct Ends {
    double told = 0;
    double taken_back = 0;
  };
  void classify(Branch& branch);
  void observe_pause(Branch& branch, TimeNs now_ns);
  uint32_t judge(const std::string& tenant, bool resume, base::DurationNs length_ns);
  void learn(Branch& branch, TimeNs now_ns);

  const int32_t sessions_max_;
  const int32_t branches_max_;
  const policy::Ideas ideas_;
  std::deque<Session> sessions_;     // stable addresses; ids are indices and are reused
  std::deque<Branch> branches_;
  std::vector<uint32_t> free_sessions_;
  std::vector<uint32_t> free_branches_;
  std::unordered_map<std::string, SessionId> by_name_;  // tenant, NUL, name
  policy::ReturnModel model_;
  std::vector<Trust> trusts_;
  std::unordered_map<std::string, uint32_t> judges_;  // "p" or "r", tenant: index into trusts_; bounded
  std::unordered_map<std::string, Ends> ends_;        // by tenant; bounded
  std::deque<std::pair<BranchId, TimeNs>> paused_lately_;  // by time, newest last; bounded
  uint32_t observed_ = 0;            // branch that observe() goes on with
  int32_t live_ = 0;
  uint64_t stamps_ = 0;
  int64_t turns_begun_ = 0;
};

}  // namespace kvtide::session
