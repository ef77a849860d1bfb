// From the calls of a replay to its figures: percentiles, ratios, spread, the JSON report and the terminal table.
//
// Failed calls are counted and never enter a latency figure; a report says how many there were.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/kvtide/http_client.h"
#include "apps/kvtide/replay_run.h"

namespace kvtide::app {

struct Spread {
  double mean = 0, p50 = 0, p95 = 0, p99 = 0;
};

/// The value at `percent` of `sorted` (ascending), linear between neighbours; 0 when empty.
double percentile(const std::vector<double>& sorted, double percent);
Spread spread_of(std::vector<double> values);

struct Capacity {
  double factor = 0;  // of the peak live set; 0: given in bytes
  int64_t device_tokens = 0;
  int64_t host_bytes = 0;
};

/// All repeats of one arm at one capacity.
struct ArmReport {
  std::string arm;
  std::string meaning;
  Capacity capacity;
  int64_t requests = 0, failed = 0;
  std::map<std::string, int64_t> failures;  // reason -> count
  Spread ttft_ms, e2e_ms;
  double queue_mean_ms = 0;
  int64_t prompt_tokens = 0, device_tokens = 0, host_tokens = 0, recomputed_tokens = 0, compulsory_tokens = 0;
  std::map<std::string, int64_t> peak_bytes;  // per tier, the highest of all repeats
  int64_t byte_mismatches = 0;
  int64_t peak_live_tokens = 0;
  int64_t hints_sent = 0, hints_failed = 0;
  std::map<std::string, int64_t> hint_statuses;
  std::vector<double> ttft_mean_by_repeat_ms, e2e_mean_by_repeat_ms;
  std::vector<double> ttft_samples_ms;     // sorted
  std::vector<OccupancySample> occupancy;  // of the first repeat
  double wall_s = 0;
  Json server_stats;  // of the last repeat

  int64_t reused_tokens() const { return device_tokens + host_tokens; }
  double hit_rate() const;
  /// What a cache without a limit would have reused: everything but what was never seen before.
  double hit_bound() const;
};

ArmReport summarise(const ArmSpec& arm, const Capacity& capacity, const std::vector<ArmRun>& repeats);

struct ReplayReport {
  std::string workload, source;
  bool synthetic = false;
  std::string machine;  // one line: CPU, cores, memory
  std::string command;
  std::string model;
  uint64_t seed = 0;
  int users = 0, repeats = 0;
  size_t sessions = 0, calls = 0;
  int64_t max_context_tokens = 0, max_reply_tokens = 0;
  double gap_scale = 1, gap_cap_s = 0;
  double bytes_per_token = 0;
  int64_t estimated_peak_live_tokens = 0;
  std::vector<ArmReport> arms;

  /// The report of arm `off` at the same capacity; null when it was not run.
  const ArmReport* baseline_of(const ArmReport& arm) const;
};

/// The machine-readable report. The fields of the first level and of `arms[]` are a contract: names are only ever added.
Json to_json(const ReplayReport& report);

/// The table for a terminal, ending in a line break.
std::string to_table(const ReplayReport& report);

/// CPU model, cores and memory of this machine in one line.
std::string machine_line();

}  // namespace kvtide::app
