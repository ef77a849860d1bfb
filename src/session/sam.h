// SAM, the session-aware manager: decides what is on the device, what is in the host tier, and for whom.
//
// A pure state machine: events with a timestamp go in, decisions come out (take_decisions), in an order that the loop must keep. The same
// event list gives the same decision list, byte for byte; trace_hash() folds both.
//
// Not responsible for: bytes (tiers and engine move them), when to run what (serving), what a hint looked like (hint).
//
// Threading: confined to the loop. Never blocks, reads no clock, does no I/O. Bounded by SamConfig.
// Cost: arrive, admit O(prompt blocks + sequences + branches that share the first block); extend O(1) a token; finish, hints O(path).
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "index/block_index.h"
#include "index/history.h"
#include "policy/cost_model.h"
#include "policy/eviction_policy.h"
#include "policy/victim_queue.h"
#include "session/first_blocks.h"
#include "session/sequences.h"
#include "session/sessions.h"
#include "session/types.h"

namespace kvtide::session {

struct SamCounters {
  int64_t evicted_device_blocks = 0;  // left the device for want of room
  int64_t evicted_host_blocks = 0;
  int64_t written_back_blocks = 0;  // copies out completed
  int64_t loaded_blocks = 0;
  int64_t failed_loads = 0;
  int64_t failed_copies_out = 0;
  int64_t dedup_blocks = 0;
  int64_t prefetched_blocks = 0;
};

class Sam {
 public:
  /// Errors: kInvalidArgument (unknown policy).
  static base::Result<std::unique_ptr<Sam>> make(SamConfig config);

  Sam(const Sam&) = delete;
  Sam& operator=(const Sam&) = delete;

  // --- The life of a request -------------------------------------------------------------------------------------------------------

  /// A request exists: its session and branch are found or made, its pause is learned, a queued offload of it is cancelled.
  /// REQUIRES: a new id; 0 < tokens.size() < seq_tokens_max.
  void arrive(Arrival arrival, TimeNs now_ns);

  enum class Admission { kAdmitted, kWait, kWaitSibling };
  /// Gives the request a sequence that holds what can be reused in place; host copies to load wait in next_load(). kWait: no sequence
  /// or cells can be freed now. kWaitSibling: another request is computing a prefix that this one shares. Ask again after progress.
  Admission admit(RequestId id, TimeNs now_ns);

  struct Estimate {
    int32_t device = 0;  // tokens that are on the device
    int32_t host = 0;    // that would be loaded
    int32_t recompute = 0;
  };
  /// What a waiting request would find now. Changes nothing. O(prompt blocks).
  Estimate estimate(RequestId id) const;

  /// Emits a copy-in of at most `blocks_max` blocks; false when nothing is left to load. Answer it with loaded() before anything else.
  bool next_load(RequestId id, int32_t blocks_max, TimeNs now_ns);
  /// The first `blocks_ok` blocks of the last copy-in are on the device. With a fault loading ends, and the rest is recomputed.
  void loaded(RequestId id, int32_t blocks_ok, LoadFault fault, TimeNs now_ns);

  SeqId sequence(RequestId id) const { return request(id).seq; }
  /// Tokens of the request that are on the device, from the start.
  int32_t length(RequestId id) const { return seqs_.length(request(id).seq); }
  std::span<const int32_t> tokens(RequestId id) const { return request(id).arrival.tokens; }

  /// A generated token joins the request's tokens; it is not on the device until extend().
  void append(RequestId id, int32_t token) { request(id).arrival.tokens.push_back(token); }
  /// The next `count` tokens of the request are on the device now.
  void extend(RequestId id, int32_t count, TimeNs now_ns);

  /// Makes sure that `count` more tokens have cells, evicting idle blocks if it must. False: only by preempting somebody.
  bool reserve(RequestId id, int32_t count, TimeNs now_ns);
  /// Takes the sequence away; what it computed stays as cache. The request waits again, with all its tokens as the prompt.
  void preempt(RequestId id, TimeNs now_ns);

  /// The turn is over: claims move to the new frontier, what it replaced is superseded, deferred actions run.
  /// `reply_tokens`: how many were generated. Long replies are followed by other pauses than short ones.
  void finish(RequestId id, Finish finish, int32_t reply_tokens, TimeNs now_ns);

  BranchRef branch_ref(RequestId id) const;
  /// The turn that ended on `branch` called `tools`: it waits for them. No effect when a newer turn began since.
  void note_tool_calls(const BranchRef& branch, const std::vector<std::string>& tools);

  Reuse reuse(RequestId id) const { return request(id).reuse; }
  SessionId session_of(RequestId id) const { return request(id).session; }

  // --- Hints -----------------------------------------------------------------------------------------------------------------------

  /// Runs or defers one action. A receipt with status deferred is completed later: see take_receipts().
  hint::Receipt hint(const std::string& tenant, const hint::Action& action, TimeNs now_ns);

  struct CompletedReceipt {
    std::string tenant;
    hint::Receipt receipt;
  };
  std::vector<CompletedReceipt> take_receipts() { return std::exchange(receipts_, {}); }
  /// The completed receipt of one hint, if it is there; the others stay. For a move that was done as soon as its copies ran.
  std::optional<hint::Receipt> take_receipt(const std::string& tenant, const std::string& hint_id);

  // --- Background work, in bites that the loop sizes ---------------------------------------------------------------------------------

  /// Emits one run of copies out of at most `blocks_max` blocks while the host tier has room to spare; false when there is nothing.
  bool next_write_back(int32_t blocks_max, TimeNs now_ns);
  /// Emits one copy-in for a prefetch; answer with prefetch_loaded() at once. False when no prefetch waits.
  bool next_prefetch(int32_t blocks_max, TimeNs now_ns);
  void prefetch_loaded(int32_t blocks_ok, LoadFault fault, TimeNs now_ns);
  bool prefetch_pending() const { return !prefetches_.empty(); }

  void copied_out(BlockId block, SlotId slot, TimeNs now_ns);
  void copy_out_failed(BlockId block, TimeNs now_ns);

  /// Housekeeping: forgets sessions beyond the limit, lets go of claims on what no tier holds, shares out the budgets of `retain`. Call
  /// about once a second. O(branches).
  void tick(TimeNs now_ns);

  std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }

  // --- Views -----------------------------------------------------------------------------------------------------------------------

  const Sessions& sessions() const { return sessions_; }
  const index::BlockIndex& blocks() const { return blocks_; }
  const Sequences& sequences() const { return seqs_; }
  const SamCounters& counters() const { return counters_; }
  policy::CostModel& costs() { return costs_; }
  const SamConfig& config() const { return config_; }
  std::string_view policy_name() const { return policy_->name(); }
  int64_t host_blocks_free() const;
  /// Blocks of the session that have a copy in `tier`.
  int64_t blocks_in(SessionId id, Tier tier) const;
  uint64_t trace_hash() const { return trace_hash_; }
  size_t requests() const { return requests_.size(); }

  void check_invariants(TimeNs now_ns);

 private:
  explicit Sam(SamConfig config);

  struct Request {
    Arrival arrival;
    SessionId session;
    BranchId branch;             // invalid: the session table was full of active sessions
    SeqId seq;                   // invalid: waiting
    std::vector<BlockId> loads;  // host copies to load, in order
    size_t loads_done = 0;
    int32_t load_in_flight = 0;
    int32_t reserved = 0;    // cells promised to it and not used yet
    size_t keys_prompt = 0;  // keys that were given; later ones are made as blocks fill
    Reuse reuse;
    bool readmitted = false;  // after a preemption: what it reuses then is its own
    bool measured = false;    // reuse was recorded at first admission; later ones (after preemption) do not count
  };
  struct Prefetch {
    std::string tenant;
    hint::Receipt receipt;
    BranchId branch;
    SeqId seq;
    size_t next = 0;  // index into the branch's path
    int32_t in_flight = 0;
  };
  // An offload whose copies are under way. The host copies of its blocks are leased; the device copies go when all are complete.
  struct Offload {
    struct Part {
      SeqId seq;
      BranchId branch;
      SessionId session;
      uint64_t life = 0;
      int64_t turns = 0;
      std::vector<BlockId> path;
      bool cancelled = false;  // wanted on the device again
    };
    std::string tenant;
    hint::Receipt receipt;
    std::vector<Part> parts;
    std::unordered_set<BlockId> copying;
    bool full = false;  // the host tier did not take everything
    bool busy = false;  // a child was running
  };
  struct Lookup {
    std::vector<BlockId> known;  // blocks of the prompt that have a copy on the device or in the host tier, from the start
    int32_t device = 0;          // of those, leading ones on the device
    int32_t limit = 0;           // blocks that may be reused: at least one token must be computed
  };
  struct Candidate {
    SeqId seq;
    int32_t common = 0;  // tokens that it shares with the prompt
  };
  struct Freed {
    int64_t device_blocks = 0;
    int64_t host_blocks = 0;
    int64_t shared_kept = 0;
  };

  Request& request(RequestId id);
  const Request& request(RequestId id) const;

  // sam_identity.cc
  void identify(Request& r, TimeNs now_ns);
  BranchId branch_by_lineage(const Request& r, SessionId session) const;
  BranchId branch_by_replies(const Request& r) const;
  BranchId branch_left_behind(const Request& r) const;
  size_t common_blocks(const Request& r, const Branch& branch) const;
  BlockId deepest_known(const Request& r) const;
  BranchId replaced_branch(const Request& r, SessionId session) const;
  void set_path(BranchId id, std::span<const BlockId> path, TimeNs now_ns);
  size_t frontier_blocks(const Branch& branch) const { return branch.path.size() + branch.lost.size(); }
  uint64_t frontier_key(const Branch& branch, size_t at) const;
  bool behind_frontier(const Branch& branch, std::span<const BlockId> path) const;
  void claim_again(BranchId id, std::span<const BlockId> path);
  void let_go_of_lost(BranchId id);
  void drop_branch(BranchId id, TimeNs now_ns);
  void forget_session(SessionId id, TimeNs now_ns);
  bool make_session_room(TimeNs now_ns);

  // sam_admit.cc
  Lookup look_up(const Request& r) const;
  int32_t common_tokens(const Request& r, const Sequence& seq) const;
  bool remainder_is_free(const Request& r, const Sequence& seq, int32_t common) const;
  Candidate best_continuation(const Request& r) const;
  bool leaves_much_behind(const Candidate& on) const;
  bool sibling_computes_prefix(const Request& r, const Lookup& found) const;
  Admission admit_lane(Request& r, const Lookup& found, TimeNs now_ns);
  Admission admit_unified(Request& r, const Lookup& found, TimeNs now_ns);
  Admission admit_without_reuse(Request& r, TimeNs now_ns);
  void take_over(Request& r, SeqId seq, int32_t tokens, TimeNs now_ns);
  void plan_loads(Request& r, const Lookup& found, TimeNs now_ns);
  void record_reuse(Request& r);
  void release_sequence(Request& r, TimeNs now_ns);

  // sam_copies.cc
  void emit(Decision decision);
  void cut(SeqId seq, int32_t tokens, std::span<const int32_t> tail, index::Loss loss, TimeNs now_ns);
  SeqId pick_idle_victim(SeqId except, TimeNs now_ns) const;
  SeqId evict_sequence(SeqId except, TimeNs now_ns);
  bool room_is_possible(int64_t cells, SeqId except) const;
  bool make_device_room(int64_t cells, SeqId except, TimeNs now_ns);
  int64_t cells_free() const;
  bool make_host_room(BlockId incoming, TimeNs now_ns);
  /// Writes blocks [from, path end) of `seq` back, as far as the host tier takes them; the number of leading ones then in the host.
  int32_t write_back(SeqId seq, int32_t from, TimeNs now_ns);
  void begin_copy_out(BlockId block);
  void unlease_host(BlockId id, TimeNs now_ns);
  void drop_unwanted(BlockId id, TimeNs now_ns);
  bool copy_failed(BlockId id) const;
  /// Appends a loaded block; one that came to the device meanwhile is shared instead, so that it is there once.
  void take_block(SeqId seq, BlockId block);
  void drop_host_copy(BlockId id, index::Loss loss, TimeNs now_ns);
  void copy_gone(BlockId id, index::Loss loss, TimeNs now_ns);

  // sam_offload.cc
  hint::Receipt offload(SessionId id, hint::Receipt receipt, TimeNs now_ns);
  hint::Receipt settle_offload(Offload& offload, TimeNs now_ns);
  void note_copied(BlockId block, TimeNs now_ns);
  void cancel_offload(BranchId branch);

  // sam_hints.cc
  hint::Receipt run_action(SessionId id, const hint::Action& action, hint::Receipt receipt, int64_t at_turn, TimeNs now_ns);
  hint::Receipt retain(SessionId id, const hint::Action& action, hint::Receipt receipt, TimeNs now_ns);
  void share_out_retention(TimeNs now_ns);
  hint::Receipt prefetch(SessionId id, const hint::Action& action, hint::Receipt receipt, TimeNs now_ns);
  hint::Receipt evict(SessionId id, bool end, hint::Receipt receipt, int64_t at_turn, TimeNs now_ns);
  Freed release_blocks(std::span<const BlockId> path, BranchId branch, TimeNs now_ns);
  void run_deferred(SessionId id, RequestId finished, TimeNs now_ns);
  void end_prefetch(size_t at, TimeNs now_ns);
  void join_prefetch(BranchId branch, TimeNs now_ns);

  const SamConfig config_;
  index::BlockIndex blocks_;
  index::History history_;
  Sequences seqs_;
  Sessions sessions_;
  policy::CostModel costs_;
  std::unique_ptr<policy::EvictionPolicy> policy_;
  std::unique_ptr<policy::VictimQueue> host_victims_;
  std::unordered_map<RequestId, Request> requests_;
  std::vector<Prefetch> prefetches_;
  std::vector<Offload> offloads_;
  std::unordered_set<BlockId> copying_out_;  // copies out that were not answered yet
  std::unordered_set<BlockId> unwanted_;     // host copies to be dropped with their last lease, unless claimed by then
  FirstBlocks first_blocks_;
  std::vector<Decision> decisions_;
  std::vector<CompletedReceipt> receipts_;
  SamCounters counters_;
  int64_t cells_reserved_ = 0;
  uint64_t derived_names_ = 0;
  uint64_t trace_hash_ = 0;
};

}  // namespace kvtide::session
