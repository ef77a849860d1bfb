// The serving facade: everything a server or a tool may ask of a running kvtide.
//
// Threading: thread-safe. Callbacks and Sink events run on the loop thread: they must not block, throw, or call back into the Service
// synchronously; they hand over to their own thread. Nothing here blocks, except stop().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/api/text_model.h"
#include "hint/hint.h"
#include "policy/regret.h"

namespace kvtide::serving {

using base::RequestId;
using engine::Token;

enum class FinishReason { kStop, kLength, kToolCalls, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);  // as OpenAI spells it

/// Why tokens that could have been reused were not (protocol/openapi.yaml).
enum class MissReason { kNone, kFirstDifference, kEvicted, kNeverStored, kOtherSalt, kNoCheckpoint, kSlowerThanRecompute, kFailedLoad };
std::string_view miss_reason_name(MissReason reason);

/// What the cache did for one request. Token counts add up: device + host + recomputed = prompt.
struct KvReport {
  std::string session_id;
  bool session_derived = false;
  uint32_t generation = 0;
  int32_t prompt_tokens = 0;
  int32_t device_tokens = 0;      // reused in place
  int32_t host_tokens = 0;        // reused from the host tier
  int32_t recomputed_tokens = 0;
  int32_t compulsory_tokens = 0;  // of the recomputed: never seen before by this server, so no cache could have had them
  double load_ms = 0;
  double queue_ms = 0;            // arrival to admission
  double prompt_ms = 0;           // admission to first token
  double predicted_ms = 0;        // first token to last
  MissReason miss = MissReason::kNone;
  int32_t miss_token = -1;        // position where reuse ended
  std::string miss_rule;          // which rule evicted it, when miss is kEvicted
};

struct GenerateRequest {
  std::string tenant = "default";
  std::string cache_salt;               // empty: none. Blocks of different salts never match
  std::vector<Token> prompt;            // at least one token
  engine::SamplingParams sampling;
  std::vector<std::string> stops;       // text that ends the reply and is not part of it
  int32_t max_tokens = -1;              // -1: until the context is full
  std::vector<Token> forced_reply;      // test and replay only: emit these instead of sampling, then stop
  hint::Hints hints;                    // identity, and actions to run after the turn
  std::vector<std::string> prior_tools; // tool names whose results the prompt brings (for gap learning); may be empty
  bool special_text = false;            // special tokens show as text in the reply (tool-call markers)
  std::string prompt_text;              // rendered text, kept hashed for exact replies; empty: do not remember
};

struct StreamEvent {
  enum class Kind { kToken, kDone, kError };
  Kind kind = Kind::kToken;
  // kToken
  std::string text;                     // whole UTF-8 characters only; may be empty
  std::optional<engine::Sample> sample; // when logprobs were asked for
  int32_t tokens = 0;                   // generated tokens so far
  // kDone
  FinishReason finish = FinishReason::kStop;
  KvReport kv;
  std::vector<hint::Receipt> receipts;
  // kError
  base::Error error{base::Code::kInternal, ""};
};

class Sink {
 public:
  virtual ~Sink() = default;
  /// Loop thread. Exactly one kDone or kError ends the stream, unless it is cancelled.
  virtual void on_event(StreamEvent event) = 0;
};

struct TierSnapshot {
  std::string name;  // device, host
  int64_t budget_bytes = 0, used_bytes = 0, peak_bytes = 0;
  int64_t blocks = 0;
  int64_t leases = 0;
  int64_t corrupt_loads = 0;
};

struct SessionSnapshot {
  std::string tenant, session_id, parent_id;
  bool derived = false;
  uint32_t generation = 0;
  std::string state;              // active, waiting_tool, waiting_user, idle, ended
  int32_t branches = 0;
  int64_t turns = 0;
  int64_t prompt_tokens = 0;      // of the newest prompt
  int64_t blocks_device = 0, blocks_host = 0, blocks_claimed = 0;
  int64_t reused_tokens_total = 0, prompt_tokens_total = 0;
  double idle_s = 0;
  std::optional<double> predicted_next_use_s;
  std::vector<std::string> children;
};

struct ServiceStats {
  int64_t requests_total = 0, requests_failed = 0, requests_cancelled = 0, requests_rejected = 0;
  int64_t prompt_tokens = 0, reused_device_tokens = 0, reused_host_tokens = 0, recomputed_tokens = 0, compulsory_tokens = 0, generated_tokens = 0;
  int64_t requests_running = 0, requests_waiting = 0;
  int64_t seqs_used = 0, seqs = 0, cells_used = 0;
  int64_t sessions = 0, blocks = 0, leases = 0;
  int64_t blocks_copied_out = 0, blocks_copied_in = 0, bytes_copied_out = 0, bytes_copied_in = 0;
  int64_t evicted_device_blocks = 0, evicted_host_blocks = 0, preemptions = 0, byte_mismatches = 0;
  int64_t copy_stall_ns_max = 0;  // longest pause of a decoding request caused by copies
  int64_t core_ns = 0;            // CPU time spent in the session manager
  int64_t loop_ns = 0;            // loop time, busy
  int64_t shadow_ns = 0;          // CPU time of the shadow that measures regret
  policy::RegretReport regret;    // what other caches would have reused
  std::vector<std::pair<std::string, int64_t>> hints;  // "dialect/verb/status" -> count
};

class Service {
 public:
  virtual ~Service() = default;

  virtual const engine::EngineInfo& engine_info() const = 0;
  virtual const engine::TextModel& text_model() const = 0;

  /// Tokens of a rendered prompt. Where it repeats a reply that this server generated (for the same tenant), the very tokens of that
  /// reply are used, so that the prompt extends what is cached. Any thread; CPU-bound.
  virtual std::vector<Token> tokenize_prompt(const std::string& tenant, const std::string& text) = 0;

  /// Queues a request. Errors: kInvalidArgument (empty, or longer than a sequence can be), kResourceExhausted (queue full), kUnavailable
  /// (stopping). The sink is shared because the loop may outlive the connection that waits on it.
  virtual base::Result<RequestId> submit(GenerateRequest request, std::shared_ptr<Sink> sink) = 0;

  /// Ends a request and frees what only it held. Unknown ids are ignored. Events that were under way may still reach the sink.
  virtual void cancel(RequestId id) = 0;

  /// A finished reply turned out to call these tools: its session waits for them, not for a person. Ignored when a newer turn began.
  virtual void note_tool_calls(RequestId id, std::vector<std::string> tools) = 0;

  using ReceiptsCallback = std::function<void(std::vector<hint::Receipt>)>;
  /// Runs the actions of a management request; never queued behind inference.
  virtual base::Status manage(const std::string& tenant, hint::Hints hints, ReceiptsCallback done) = 0;
  /// The receipt of an earlier hint, newest state; nullopt when unknown or forgotten.
  virtual base::Status find_receipt(const std::string& tenant, std::string hint_id, std::function<void(std::optional<hint::Receipt>)> done) = 0;

  struct SessionQuery {
    std::string tenant;       // empty: all (admin)
    std::string session_id;   // empty: all
    size_t offset = 0, limit = 100;
  };
  virtual base::Status sessions(SessionQuery query, std::function<void(std::vector<SessionSnapshot>, size_t total)> done) = 0;
  virtual base::Status tiers(std::function<void(std::vector<TierSnapshot>)> done) = 0;
  virtual base::Status stats(std::function<void(ServiceStats)> done) = 0;

  /// No new requests; running ones go on until `deadline`, then end with a kUnavailable error. Blocks until the loop thread is gone.
  virtual void stop(std::chrono::milliseconds deadline) = 0;
};

}  // namespace kvtide::serving
