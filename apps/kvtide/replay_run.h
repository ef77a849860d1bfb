// One arm of a replay against one fresh server: closed-loop users, each a thread, and what they measured.
//
// Threading: run_arm() starts and joins its own threads and blocks until every user is done.
// Errors: kUnavailable when the server is gone. A failed request is no error: it is counted, with its reason, and the user goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtide/http_client.h"
#include "apps/kvtide/replay_workload.h"

namespace kvtide::app {

/// What a simulated client tells: nothing; the truth (pauses with an error of estimate, prefetch, end); or hints meant for others.
enum class ClientHints { kNone, kTrue, kWrong };

struct ArmSpec {
  std::string name;     // off, infer, on, wrong
  std::string meaning;  // for reports
  std::string policy;   // of the server
  bool server_hints = false;
  ClientHints client = ClientHints::kNone;
};

/// The arm called `name`, or an error that lists all.
base::Result<ArmSpec> find_arm(std::string_view name);

struct CallResult {
  size_t user = 0, session = 0, turn = 0;
  double start_s = 0;  // since the run began
  double ttft_ms = 0, e2e_ms = 0;
  bool failed = false;
  std::string why;  // of a failure
  std::string finish_reason;
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t device_tokens = 0, host_tokens = 0;  // reused, by tier
  int64_t recomputed_tokens = 0, compulsory_tokens = 0;
  double queue_ms = 0, load_ms = 0;
};

/// Reads one chunk of a streamed chat completion into `call`. True when it brought the first text of the reply.
bool take_chunk(const Json& chunk, CallResult& call);

struct TierFigure {
  std::string name;
  int64_t budget_bytes = 0, used_bytes = 0, peak_bytes = 0;
};
std::vector<TierFigure> parse_tiers(const Json& answer);

struct OccupancySample {
  double at_s = 0;
  std::vector<TierFigure> tiers;
};

struct ArmRun {
  std::string arm;
  std::vector<CallResult> calls;
  std::vector<TierFigure> tiers;           // at the end, with peaks
  std::vector<OccupancySample> occupancy;  // once a second
  int64_t byte_mismatches = 0;
  int64_t peak_live_tokens = 0;  // measured: contexts alive at once, by usage
  int64_t hints_sent = 0, hints_failed = 0;
  std::map<std::string, int64_t> hint_statuses;
  double wall_s = 0;
  Json server_stats;  // as the server gave them
};

struct ArmProgress {
  double elapsed_s = 0;
  size_t done = 0, failed = 0;
  double ttft_mean_ms = 0;
};

struct RunOptions {
  std::chrono::milliseconds silence_timeout = std::chrono::minutes(10);
  double prefetch_lead_s = 1.0;                         // a prefetch is sent this long before the next request ...
  double prefetch_gap_min_s = 2.0;                      // ... in pauses longer than this
  std::function<void(const ArmProgress&)> on_progress;  // about once a second, from the calling thread
};

base::Result<ArmRun> run_arm(const Workload& workload, const ArmSpec& arm, const Endpoint& endpoint, const RunOptions& options);

/// The body of a native hint message with one action.
Json native_hint(std::string_view verb, const std::string& session_id, Json more = Json::object());

}  // namespace kvtide::app
