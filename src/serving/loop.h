// The loop: one thread that owns engine, index, sessions and policy, and gives every request its turn.
//
// Each turn: drain the inbox; let the manager admit; run copies within a time budget (unlimited while nobody decodes); build one batch,
// decodes first, then prompt chunks; step; emit. Who is admitted next and whose prompt goes on is the schedule's business (schedule.h);
// nobody is passed over for longer than a bound.
//
// Threading: the Service methods are thread-safe; everything private runs on the loop thread.
// When full: the inbox and the waiting line answer kResourceExhausted.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "hint/receipt_log.h"
#include "policy/shadow.h"
#include "serving/copy_executor.h"
#include "serving/prompt_memory.h"
#include "serving/reply_text.h"
#include "serving/request_log.h"
#include "serving/schedule.h"
#include "serving/service.h"
#include "session/sam.h"
#include "tier/api/tier.h"

namespace kvtide::serving {

struct LoopOptions {
  std::string policy = "affinity";
  Schedule schedule = Schedule::kAffinity;
  bool hints = true;
  int32_t parallel = 8;                // requests with a sequence at once
  int32_t queue_max = 256;             // requests that wait
  int32_t sessions_max = 4096;
  base::DurationNs copy_budget_ns = 2 * base::kMillisecond;     // of one turn, while somebody decodes
  base::DurationNs decode_stall_ns = 250 * base::kMillisecond;  // prompt chunks are sized so that decoders wait about this long,
  base::DurationNs step_max_ns = 500 * base::kMillisecond;      // and so that the inbox does when nobody decodes
  size_t prompt_memory_bytes = 256U << 20;
  RequestLog* request_log = nullptr;   // null: none. Must outlive the loop
};

class Loop final : public Service {
 public:
  /// `host` may be null. Errors: kInvalidArgument (unknown policy). The clock must outlive the loop.
  static base::Result<std::unique_ptr<Loop>> start(std::unique_ptr<engine::Engine> engine, std::unique_ptr<engine::TextModel> text_model,
                                                   std::unique_ptr<tier::Tier> host, LoopOptions options, const base::Clock& clock);
  ~Loop() override;

  const engine::EngineInfo& engine_info() const override { return engine_->info(); }
  const engine::TextModel& text_model() const override { return *text_model_; }
  std::vector<Token> tokenize_prompt(const std::string& tenant, const std::string& text) override;
  base::Result<RequestId> submit(GenerateRequest request, std::shared_ptr<Sink> sink) override;
  void cancel(RequestId id) override;
  void note_tool_calls(RequestId id, std::vector<std::string> tools) override;
  base::Status manage(const std::string& tenant, hint::Hints hints, ReceiptsCallback done) override;
  base::Status find_receipt(const std::string& tenant, std::string hint_id, std::function<void(std::optional<hint::Receipt>)> done) override;
  base::Status sessions(SessionQuery query, std::function<void(std::vector<SessionSnapshot>, size_t total)> done) override;
  base::Status tiers(std::function<void(std::vector<TierSnapshot>)> done) override;
  base::Status stats(std::function<void(ServiceStats)> done) override;
  void stop(std::chrono::milliseconds deadline) override;

 private:
  enum class Phase : uint8_t { kWaiting, kLoading, kPrefill, kDecode };
  struct Active {
    RequestId id;
    GenerateRequest request;
    std::shared_ptr<Sink> sink;
    std::unique_ptr<engine::Sampler> sampler;
    ReplyText text{{}};
    std::string raw_reply;                // as generated, special tokens as text
    Phase phase = Phase::kWaiting;
    base::TimeNs arrived_ns = 0, admitted_ns = 0, first_token_ns = 0;
    base::DurationNs load_ns = 0;
    int32_t generated = 0;
    int32_t prompt_tokens = 0;
    Token pending = 0;                    // sampled, not yet on the device
    base::TimeNs started_ns = 0;          // admitted last
    double work_ns = 0;                   // predicted until its first token, while it waits
    int64_t estimated_at = 0;             // residency() of that
    uint64_t tried_at = 0;                // decision_ that tried to admit it
    bool held = false;                    // a sibling computes what it shares
    bool resuming = false;                // preempted after its first token: `pending` is still to come
    std::vector<std::string> hint_ids;    // of its own actions
    std::vector<policy::SampledBlock> shadow_path;  // blocks of the prompt that the shadow looks at
    bool compared = false;                // the shadow knows what was reused
    std::vector<index::BlockKey> logged_keys;  // of the prompt; only with a request log
  };
  using Call = std::function<void()>;

  // Adds the time it lives to core_ns: what the session manager costs.
  class CoreTimer {
   public:
    explicit CoreTimer(Loop& loop) : loop_(loop), begin_ns_(loop.clock_.now()) {}
    ~CoreTimer() { loop_.totals_.core_ns += loop_.clock_.now() - begin_ns_; }

   private:
    Loop& loop_;
    base::TimeNs begin_ns_;
  };

  Loop(std::unique_ptr<engine::Engine> engine, std::unique_ptr<engine::TextModel> text_model, std::unique_ptr<tier::Tier> host, LoopOptions options,
       std::unique_ptr<session::Sam> sam, const base::Clock& clock);

  base::Status post(Call call);
  void run(std::stop_token stop);
  bool turn();  // whether anything was done
  void drain_inbox(bool wait);
  void accept(RequestId id, GenerateRequest request, std::shared_ptr<Sink> sink, std::vector<index::BlockKey> keys, index::BlockKey root);
  void admit_waiting();
  void admit_by_arrival();
  session::Sam::Admission try_admit(Active& a);
  // loop_schedule.cc
  Place place(const Active& a) const;
  void estimate(Active& a);
  int64_t residency() const;
  void refresh_estimates();
  void admit_by_affinity();
  bool admission_stalls(base::TimeNs begin_ns) const;
  std::vector<RequestId> in_order(Phase phase) const;

  bool decoding() const;
  void run_copies();
  bool load_some(Active& a, int32_t blocks_max);
  int32_t bite_blocks(base::DurationNs left_ns) const;
  bool pump_prefetch(int32_t blocks_max);

  struct BatchItem {
    Active* active;
    int32_t count;
    bool last;      // of the prompt, or a decode: logits wanted
    bool prefill;
  };
  std::vector<BatchItem> build_batch();
  int32_t tokens_within(double left_ns, int32_t at, int32_t tokens_max) const;
  bool make_room_to_decode(Active& a);
  bool step();
  void note_prefill_cost(const std::vector<BatchItem>& batch, base::DurationNs took_ns);
  void step_alone(const std::vector<BatchItem>& batch, const std::vector<engine::StepItem>& items);
  void emit_token(Active& a, size_t item);
  void finish(Active& a, FinishReason reason);
  void fail(Active& a, base::Error error);
  void remember(const Active& a);
  void log_request(Active& a, FinishReason reason);
  void compare_reuse(Active& a);
  void note_finished_path(Active& a);
  void drop(RequestId id);
  KvReport report(const Active& a, base::TimeNs now_ns) const;

  std::vector<hint::Receipt> run_actions(const std::string& tenant, hint::Hints& hints);
  hint::Receipt run_action(const std::string& tenant, const std::string& dialect, hint::Action action);
  void log_completed_receipts();
  void count_hint(const std::string& dialect, const hint::Receipt& receipt);

  ServiceStats snapshot_stats() const;
  SessionSnapshot snapshot_session(session::SessionId id) const;

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::TextModel> text_model_;
  std::unique_ptr<tier::Tier> host_;
  const LoopOptions options_;
  std::unique_ptr<session::Sam> sam_;
  const base::Clock& clock_;
  CopyExecutor copies_;
  PromptMemory memory_;
  hint::ReceiptLog receipts_;
  policy::Shadow shadow_;

  base::BoundedQueue<Call> inbox_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<int32_t> waiting_{0};
  std::atomic<int64_t> rejected_{0};
  std::atomic<bool> stopping_{false};
  std::mutex cancels_mutex_;
  std::vector<RequestId> cancels_;         // apart from the inbox: a cancel is never refused. Bounded by the requests there are

  // Loop thread only.
  std::unordered_map<RequestId, std::unique_ptr<Active>> actives_;
  std::deque<RequestId> waiting_line_;     // by arrival
  std::vector<RequestId> running_;         // by admission
  int64_t changes_ = 0;                    // requests that came or went, actions run: blocks may have too
  bool progress_ = false;                  // a prompt was computed or a request went: what held siblings wait for may be there
  uint64_t decision_ = 0;
  size_t refresh_next_ = 0;
  std::unordered_map<RequestId, session::BranchRef> recent_;  // finished lately, for note_tool_calls
  std::deque<RequestId> recent_order_;
  std::map<std::string, int64_t> hint_counts_;
  ServiceStats totals_;
  base::TimeNs last_tick_ns_ = 0;
  uint64_t next_hint_ = 1;
  int64_t device_cells_peak_ = 0;
  base::TimeNs stop_at_ns_ = 0;

  std::jthread thread_;                    // last: it uses all of the above
};

}  // namespace kvtide::serving
