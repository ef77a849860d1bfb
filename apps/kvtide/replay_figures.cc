#include "apps/kvtide/replay_figures.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <thread>

namespace kvtide::app {
namespace {

double ratio(int64_t part, int64_t whole) { return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole); }

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

Json spread_json(const Spread& s) { return {{"mean", s.mean}, {"p50", s.p50}, {"p95", s.p95}, {"p99", s.p99}}; }

/// (largest - smallest) / mean over repeats; null for a single one.
Json relative_range(const std::vector<double>& by_repeat) {
  const double mean = mean_of(by_repeat);
  if (by_repeat.size() < 2 || mean == 0) return nullptr;
  const auto [low, high] = std::minmax_element(by_repeat.begin(), by_repeat.end());
  return (*high - *low) / mean;
}

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::array<char, 512> line{};
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(line.data(), line.size(), pattern, arguments);
  va_end(arguments);
  return line.data();
}

std::string times_off(double value, double off) { return off == 0 ? std::string("-") : format("%.2fx", value / off); }

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int64_t peak(const ArmReport& arm, const char* tier) {
  const auto it = arm.peak_bytes.find(tier);
  return it == arm.peak_bytes.end() ? 0 : it->second;
}

Json arm_json(const ReplayReport& report, const ArmReport& arm) {
  Json out{{"arm", arm.arm},
           {"capacity",
            {{"device_tokens", arm.capacity.device_tokens}, {"host_bytes", arm.capacity.host_bytes}, {"disk_bytes", 0}, {"pool_bytes", 0}}},
           {"requests", arm.requests},
           {"failed", arm.failed},
           {"ttft_ms", spread_json(arm.ttft_ms)},
           {"e2e_ms", spread_json(arm.e2e_ms)},
           {"prompt_tokens", arm.prompt_tokens},
           {"reused_tokens", arm.reused_tokens()},
           {"recomputed_tokens", arm.recomputed_tokens},
           {"compulsory_tokens", arm.compulsory_tokens},
           {"peak_bytes", arm.peak_bytes},
           {"byte_mismatches", arm.byte_mismatches}};
  out["meaning"] = arm.meaning;
  out["capacity_factor"] = arm.capacity.factor > 0 ? Json(arm.capacity.factor) : Json(nullptr);
  out["reused_by_tier"] = {{"device", arm.device_tokens}, {"host", arm.host_tokens}};
  out["hit_rate"] = arm.hit_rate();
  out["hit_bound"] = arm.hit_bound();
  out["queue_mean_ms"] = arm.queue_mean_ms;
  out["failures"] = arm.failures;
  out["peak_live_tokens"] = arm.peak_live_tokens;
  out["hints"] = {{"sent", arm.hints_sent}, {"failed", arm.hints_failed}, {"statuses", arm.hint_statuses}};
  out["repeats"] = {{"ttft_mean_ms", arm.ttft_mean_by_repeat_ms},
                    {"e2e_mean_ms", arm.e2e_mean_by_repeat_ms},
                    {"ttft_spread", relative_range(arm.ttft_mean_by_repeat_ms)},
                    {"e2e_spread", relative_range(arm.e2e_mean_by_repeat_ms)}};
  out["wall_s"] = arm.wall_s;
  out["server_stats"] = arm.server_stats;
  if (const ArmReport* off = report.baseline_of(arm); off != nullptr && off->ttft_ms.mean > 0) {
    out["ratio_to_off"] = {{"ttft_mean", arm.ttft_ms.mean / off->ttft_ms.mean},
                           {"ttft_p95", arm.ttft_ms.p95 / off->ttft_ms.p95},
                           {"e2e_mean", arm.e2e_ms.mean / off->e2e_ms.mean},
                           {"hit_rate", off->hit_rate() > 0 ? Json(arm.hit_rate() / off->hit_rate()) : Json(nullptr)}};
  }
  return out;
}

}  // namespace

double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(std::floor(at));
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {mean_of(values), percentile(values, 50), percentile(values, 95), percentile(values, 99)};
}

double ArmReport::hit_rate() const { return ratio(reused_tokens(), prompt_tokens); }
double ArmReport::hit_bound() const { return ratio(prompt_tokens - compulsory_tokens, prompt_tokens); }

ArmReport summarise(const ArmSpec& arm, const Capacity& capacity, const std::vector<ArmRun>& repeats) {
  ArmReport out;
  out.arm = arm.name;
  out.meaning = arm.meaning;
  out.capacity = capacity;
  std::vector<double> e2e, queue;
  for (const ArmRun& run : repeats) {
    std::vector<double> run_ttft, run_e2e;
    for (const CallResult& call : run.calls) {
      ++out.requests;
      if (call.failed) {
        ++out.failed;
        ++out.failures[call.why];
        continue;
      }
      run_ttft.push_back(call.ttft_ms);
      run_e2e.push_back(call.e2e_ms);
      queue.push_back(call.queue_ms);
      out.prompt_tokens += call.prompt_tokens;
      out.device_tokens += call.device_tokens;
      out.host_tokens += call.host_tokens;
      out.recomputed_tokens += call.recomputed_tokens;
      out.compulsory_tokens += call.compulsory_tokens;
    }
    out.ttft_mean_by_repeat_ms.push_back(mean_of(run_ttft));
    out.e2e_mean_by_repeat_ms.push_back(mean_of(run_e2e));
    out.ttft_samples_ms.insert(out.ttft_samples_ms.end(), run_ttft.begin(), run_ttft.end());
    e2e.insert(e2e.end(), run_e2e.begin(), run_e2e.end());
    for (const TierFigure& tier : run.tiers) out.peak_bytes[tier.name] = std::max(out.peak_bytes[tier.name], tier.peak_bytes);
    for (const auto& [status, count] : run.hint_statuses) out.hint_statuses[status] += count;
    out.byte_mismatches += run.byte_mismatches;
    out.peak_live_tokens = std::max(out.peak_live_tokens, run.peak_live_tokens);
    out.hints_sent += run.hints_sent;
    out.hints_failed += run.hints_failed;
    out.wall_s += run.wall_s;
    out.server_stats = run.server_stats;
  }
  // Tiers that this build does not have still have a place in the report.
  for (const char* tier : {"device", "host"}) out.peak_bytes.try_emplace(tier, 0);
  if (!repeats.empty()) out.occupancy = repeats.front().occupancy;
  std::sort(out.ttft_samples_ms.begin(), out.ttft_samples_ms.end());
  out.ttft_ms = spread_of(out.ttft_samples_ms);
  out.e2e_ms = spread_of(std::move(e2e));
  out.queue_mean_ms = mean_of(queue);
  return out;
}

const ArmReport* ReplayReport::baseline_of(const ArmReport& arm) const {
  for (const ArmReport& other : arms) {
    const Capacity& a = other.capacity;
    const Capacity& b = arm.capacity;
    if (other.arm == "off" && a.device_tokens == b.device_tokens && a.host_bytes == b.host_bytes) return &other;
  }
  return nullptr;
}

Json to_json(const ReplayReport& report) {
  Json arms = Json::array();
  for (const ArmReport& arm : report.arms) arms.push_back(arm_json(report, arm));
  return {{"machine", report.machine},
          {"seed", report.seed},
          {"arms", std::move(arms)},
          {"workload", report.workload},
          {"source", report.source},
          {"synthetic", report.synthetic},
          {"command", report.command},
          {"model", report.model},
          {"users", report.users},
          {"repeats", report.repeats},
          {"sessions", report.sessions},
          {"calls", report.calls},
          {"max_context_tokens", report.max_context_tokens},
          {"max_reply_tokens", report.max_reply_tokens},
          {"gap_scale", report.gap_scale},
          {"gap_cap_s", report.gap_cap_s},
          {"bytes_per_token", report.bytes_per_token},
          {"estimated_peak_live_tokens", report.estimated_peak_live_tokens},
          {"replies", "forced: the server emits the recorded reply, so the next prompt extends it"}};
}

std::string to_table(const ReplayReport& report) {
  std::string out = "\nreplay " + report.workload + ": " + std::to_string(report.users) + " users, " + std::to_string(report.sessions) +
                    " sessions, " + std::to_string(report.calls) + " calls; replies forced; seed " + std::to_string(report.seed) + "\n" +
                    "machine: " + report.machine + "\n";
  if (report.synthetic) out += "The workload is synthetic: generated, not recorded.\n";
  const Capacity* shown = nullptr;
  for (const ArmReport& arm : report.arms) {
    if (shown == nullptr || shown->device_tokens != arm.capacity.device_tokens || shown->host_bytes != arm.capacity.host_bytes) {
      shown = &arm.capacity;
      out += format("\ncache %s: device %lld tokens, host %.0f MiB\n",
                    shown->factor > 0 ? format("%.2f x the peak live set", shown->factor).c_str() : "as given",
                    static_cast<long long>(shown->device_tokens), mib(shown->host_bytes));
      out +=
          "arm    TTFT mean  to off      p50      p95      p99 | E2E mean  to off      p95 |  hit   bound | peak MiB dev/host | failed  "
          "bad bytes\n";
    }
    const ArmReport* off = report.baseline_of(arm);
    out += format("%-6s %7.0f ms %7s %7.0fms %7.0fms %7.0fms | %6.0fms %7s %7.0fms | %4.1f%%  %4.1f%% | %8.0f %8.0f | %3lld/%-5lld %4lld\n",
                  arm.arm.c_str(), arm.ttft_ms.mean, times_off(arm.ttft_ms.mean, off == nullptr ? 0 : off->ttft_ms.mean).c_str(),
                  arm.ttft_ms.p50, arm.ttft_ms.p95, arm.ttft_ms.p99, arm.e2e_ms.mean,
                  times_off(arm.e2e_ms.mean, off == nullptr ? 0 : off->e2e_ms.mean).c_str(), arm.e2e_ms.p95, 100 * arm.hit_rate(),
                  100 * arm.hit_bound(), mib(peak(arm, "device")), mib(peak(arm, "host")), static_cast<long long>(arm.failed),
                  static_cast<long long>(arm.requests), static_cast<long long>(arm.byte_mismatches));
    if (const Json range = relative_range(arm.ttft_mean_by_repeat_ms); !range.is_null()) {
      out += format("       spread over %zu repeats: TTFT mean +-%.0f %%\n", arm.ttft_mean_by_repeat_ms.size(), 50 * range.get<double>());
    }
    for (const auto& [why, count] : arm.failures) out += format("       %lld failed: %.200s\n", static_cast<long long>(count), why.c_str());
  }
  if (report.repeats < 2) out += "\nOne repeat each: no spread known. Give --repeats 3 before you quote a figure.\n";
  return out + "command: " + report.command + "\n";
}

std::string machine_line() {
  std::string cpu = "unknown CPU";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (const size_t colon = line.find(':'); line.starts_with("model name") && colon != std::string::npos && colon + 2 < line.size()) {
      cpu = line.substr(colon + 2);
      break;
    }
  }
  const double memory_gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 30);
  return cpu + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores, " + format("%.0f GiB", memory_gib);
}

}  // namespace kvtide::app
