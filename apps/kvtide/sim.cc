// `kvtide sim`: plays a recorded trace through the session manager in virtual time, beside baselines and the offline optimum.
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/kvtide/commands.h"
#include "apps/kvtide/data_folders.h"
#include "sim/driver.h"
#include "sim/readers/readers.h"

namespace kvtide::app {
namespace {

using base::Code;
using base::error;
using base::Result;
using base::Status;
using Json = nlohmann::ordered_json;

struct SimOptions {
  std::string trace = "weka";
  std::string data_dir;
  std::vector<int> lanes{8};
  std::vector<std::string> capacity{"1M"};
  std::string host = "0";
  sim::Machine machine;
  std::vector<std::string> policies{"lru", "affinity", "belady"};
  std::vector<std::string> hints{"none"};
  std::string sessions = "all";
  std::vector<std::string> without;
  std::string json_file;
  uint64_t seed = 1;
  bool check = false;
};

/// "0.5M", "100k", "65536" tokens.
Result<int64_t> parse_tokens(const std::string& text, const std::string& flag) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double scale = unit.empty() ? 1 : unit == "k" || unit == "K" ? 1e3 : unit == "M" ? 1e6 : 0;
  if (ec != std::errc() || scale == 0 || !(value * scale >= 1 && value * scale < 1e12))
    return error(Code::kInvalidArgument, flag + ": '" + text + "' is not a number of tokens such as 0.5M, 200k or 65536");
  return static_cast<int64_t>(value * scale);
}

Result<sim::Hints> parse_hints(const std::string& name) {
  if (name == "none") return sim::Hints::kNone;
  if (name == "end") return sim::Hints::kEnd;
  if (name == "resume") return sim::Hints::kResume;
  if (name == "wrong") return sim::Hints::kWrong;
  return error(Code::kInvalidArgument, "--hints: '" + name + "' is unknown; known: none, end, resume, wrong");
}

Result<sim::Select> parse_sessions(const std::string& name) {
  if (name == "all") return sim::Select::kAll;
  if (name == "odd") return sim::Select::kOdd;
  if (name == "even") return sim::Select::kEven;
  return error(Code::kInvalidArgument, "--sessions: '" + name + "' is unknown; known: all, odd, even");
}

std::filesystem::path data_folder(const std::string& given) {
  if (!given.empty()) return given;
  if (const char* env = std::getenv("KVTIDE_DATA"); env != nullptr && *env != '\0') return env;
  std::error_code ec;
  const auto folders = default_data_folders(std::filesystem::read_symlink("/proc/self/exe", ec));
  for (const auto& folder : folders) {
    if (std::filesystem::is_directory(folder, ec)) return folder;
  }
  return folders.front();
}

class Simulation {
 public:
  explicit Simulation(SimOptions options) : options_(std::move(options)) {}

  Status run() {
    auto select = parse_sessions(options_.sessions);
    if (!select) return tl::make_unexpected(select.error());
    std::vector<int64_t> capacities;
    for (const std::string& text : options_.capacity) {
      auto tokens = parse_tokens(text, "--capacity");
      if (!tokens) return tl::make_unexpected(tokens.error());
      capacities.push_back(*tokens);
    }
    if (options_.host != "0") {
      auto tokens = parse_tokens(options_.host, "--host");
      if (!tokens) return tl::make_unexpected(tokens.error());
      options_.machine.host_tokens = *tokens;
    }
    std::vector<sim::Hints> levels;
    for (const std::string& name : options_.hints) {
      auto level = parse_hints(name);
      if (!level) return tl::make_unexpected(level.error());
      levels.push_back(*level);
    }
    for (const std::string& name : options_.without) {
      const auto idea = policy::find_idea(name);
      if (!idea) {
        std::string known;
        for (const std::string_view k : policy::kIdeaNames) (known += known.empty() ? "" : ", ") += k;
        return error(Code::kInvalidArgument, "--without: '" + name + "' is unknown; known: " + known);
      }
      ideas_.leave_out(*idea);
    }
    auto trace = sim::read_trace(options_.trace, data_folder(options_.data_dir), [&](int32_t number) { return sim::selected(number, *select); });
    if (!trace) return tl::make_unexpected(trace.error());
    trace_ = std::move(*trace);
    if (trace_.sessions.empty()) return error(Code::kInvalidArgument, "the trace has no request");
    if (trace_.absolute) options_.lanes = {0};
    for (const int lanes : options_.lanes) {
      const sim::ScheduleOptions schedule_options{std::max(lanes, 1), options_.seed, trace_.absolute ? sim::Select::kAll : *select};
      schedule_ = sim::make_schedule(trace_, schedule_options);
      if (schedule_.events.empty()) return error(Code::kInvalidArgument, "--sessions " + options_.sessions + " leaves nothing of this trace");
      future_ = sim::look_ahead(trace_, schedule_);
      describe(lanes);
      for (const int64_t capacity : capacities) {
        if (auto s = run_capacity(lanes, capacity, levels); !s) return s;
      }
    }
    if (options_.json_file.empty()) return {};
    std::ofstream out(options_.json_file, std::ios::trunc);
    out << Json{{"runs", runs_}}.dump(2) << "\n" << std::flush;
    if (!out) return error(Code::kUnavailable, "cannot write '" + options_.json_file + "' (--json)");
    return {};
  }

 private:
  void describe(int lanes) {
    std::printf("%s: %zu requests of %zu sessions", trace_.name.c_str(), schedule_.events.size(), schedule_.order.size());
    if (trace_.absolute) {
      std::printf(", arrival times as recorded\n");
      return;
    }
    std::printf(", %s sessions back to back on %d lanes, seed %llu, order", options_.sessions.c_str(), lanes,
                static_cast<unsigned long long>(options_.seed));
    for (size_t i = 0; i < std::min<size_t>(8, schedule_.order.size()); ++i) std::printf(" %d", schedule_.order[i]);
    std::printf("%s\n", schedule_.order.size() > 8 ? " ..." : "");
  }

  Status run_capacity(int lanes, int64_t capacity, const std::vector<sim::Hints>& levels) {
    const int64_t host = options_.machine.host_tokens;
    const double optimum = static_cast<double>(sim::drive_belady(trace_, schedule_, future_, capacity + host).recomputed_tokens);
    std::printf("\ncapacity %.2f M tokens, %d lanes", static_cast<double>(capacity) * 1e-6, lanes);
    if (host > 0) std::printf(", host %.2f M tokens behind it (belady and entry: both as one)", static_cast<double>(host) * 1e-6);
    std::printf("\n%-10s %-7s %9s %14s %14s %12s %9s %10s%s\n", "policy", "hints", "hit rate", "recomputed", "/ compulsory", "/ belady", "seconds",
                "M blocks/s", host > 0 ? "   stall s  s/request    GB in   GB out" : "");
    for (const std::string& policy : options_.policies) {
      const bool hears = policy != "belady" && policy != "entry" && policy != "lru";
      for (size_t i = 0; i < levels.size(); ++i) {
        if (!hears && i > 0) break;
        const auto begin = std::chrono::steady_clock::now();
        auto result = one(policy, hears ? levels[i] : sim::Hints::kNone, capacity);
        if (!result) return tl::make_unexpected(result.error());
        const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        report(policy, hears ? options_.hints[i] : "-", lanes, capacity, *result, optimum, took_s);
      }
    }
    return {};
  }

  Result<sim::DriverResult> one(const std::string& policy, sim::Hints hints, int64_t capacity) const {
    if (policy == "belady") return sim::drive_belady(trace_, schedule_, future_, capacity + options_.machine.host_tokens);
    if (policy == "entry") return sim::drive_entries(trace_, schedule_, capacity + options_.machine.host_tokens);
    return sim::drive(trace_, schedule_, {policy, ideas_, hints, capacity, options_.machine, options_.seed, options_.check});
  }

  void report(const std::string& policy, const std::string& hints, int lanes, int64_t capacity, const sim::DriverResult& r, double optimum,
              double took_s) {
    const auto recomputed = static_cast<double>(r.recomputed_tokens);
    std::printf("%-10s %-7s %8.2f%% %14lld %14.4f %12.4f %9.2f %10.2f", policy.c_str(), hints.c_str(),
                100 * (1 - recomputed / static_cast<double>(r.prompt_tokens)), static_cast<long long>(r.recomputed_tokens),
                recomputed / static_cast<double>(r.compulsory_tokens), recomputed / optimum, took_s,
                static_cast<double>(r.block_events) * 1e-6 / std::max(took_s, 1e-9));
    const bool timed = options_.machine.host_tokens > 0 && policy != "belady" && policy != "entry";
    if (timed) {
      std::printf(" %9.0f %10.3f %8.1f %8.1f", r.stall_s, r.stall_s / static_cast<double>(r.requests), static_cast<double>(r.copied_in_bytes) * 1e-9,
                  static_cast<double>(r.copied_out_bytes) * 1e-9);
    }
    std::printf("\n");
    std::fflush(stdout);
    std::array<char, 17> hash{};
    std::snprintf(hash.data(), hash.size(), "%016llx", static_cast<unsigned long long>(r.trace_hash));
    runs_.push_back(Json{{"trace", options_.trace},
                         {"sessions", options_.sessions},
                         {"lanes", lanes},
                         {"capacity_tokens", capacity},
                         {"policy", policy},
                         {"hints", hints == "-" ? "none" : hints},
                         {"without", policy == "affinity" ? options_.without : std::vector<std::string>{}},
                         {"seed", options_.seed},
                         {"requests", r.requests},
                         {"prompt_tokens", r.prompt_tokens},
                         {"compulsory_tokens", r.compulsory_tokens},
                         {"recomputed_tokens", r.recomputed_tokens},
                         {"bypassed_requests", r.bypassed},
                         {"hints_sent", r.hints_sent},
                         {"decisions_hash", hash.data()}});
    if (!timed) return;
    runs_.back()["host_capacity_tokens"] = options_.machine.host_tokens;
    runs_.back()["loaded_tokens"] = r.host_tokens;
    runs_.back()["copied_in_bytes"] = r.copied_in_bytes;
    runs_.back()["copied_out_bytes"] = r.copied_out_bytes;
    runs_.back()["stall_seconds"] = r.stall_s;
  }

  SimOptions options_;
  policy::Ideas ideas_;
  sim::Trace trace_;
  sim::Schedule schedule_;
  sim::Future future_;
  Json runs_ = Json::array();
};

}  // namespace

Command add_sim(CLI::App& program) {
  CLI::App* app = program.add_subcommand("sim", "play a recorded trace through the cache manager in virtual time");
  const auto o = std::make_shared<SimOptions>();
  app->add_option("--trace", o->trace, "weka, pauses, chat, azure, or a file (kvtide serve --record-trace)")->capture_default_str();
  app->add_option("--data", o->data_dir, "folder with the public traces (else $KVTIDE_DATA, else ../shared/data)")->type_name("DIR");
  app->add_option("--lanes", o->lanes, "sessions at a time, such as 8,16")->delimiter(',')->check(CLI::Range(1, 100000))->capture_default_str();
  app->add_option("--capacity", o->capacity, "of the cache, in tokens, such as 0.5M,1M")->delimiter(',')->capture_default_str();
  app->add_option("--host", o->host, "tokens of a host tier behind it; then times are told, by the flags below; 0: none")->capture_default_str();
  app->add_option("--kv-bytes", o->machine.token_bytes, "KV bytes a token")->check(CLI::Range(1.0, 1e9))->capture_default_str();
  app->add_option("--copy-bytes-per-s", o->machine.copy_bytes_per_s, "between host and device, each way")->check(CLI::Range(1e3, 1e15))->capture_default_str();
  app->add_option("--prefill-s", o->machine.prefill_s_per_token, "seconds to compute a token at the start of a prompt,")->check(CLI::Range(1e-9, 1e3))->capture_default_str();
  app->add_option("--prefill-s-per-1k", o->machine.prefill_s_per_token_1k, "and so many more for each 1,000 tokens before it")->check(CLI::Range(0.0, 1e3))->capture_default_str();
  app->add_option("--policy", o->policies, "of lru, rfc52113, affinity, belady, entry")->delimiter(',')->capture_default_str();
  app->add_option("--hints", o->hints, "what clients tell: of none, end, resume, wrong")->delimiter(',')->capture_default_str();
  app->add_option("--sessions", o->sessions, "odd, even or all")->capture_default_str();
  app->add_option("--without", o->without, "ideas of affinity to leave out, such as reply,newcomer (tools/ablate)")->delimiter(',');
  app->add_option("--seed", o->seed, "order of sessions, errors of what clients expect")->capture_default_str();
  app->add_option("--json", o->json_file, "write the figures here")->type_name("FILE");
  app->add_flag("--check", o->check, "recount the manager's state as it goes; slow");
  app->footer(
      "The manager is the one of `kvtide serve`; requests are served the moment they arrive. belady: the offline optimum; entry: one\n"
      "whole-prompt copy a session. Tune on even sessions, report odd ones.\n"
      "Example:\n"
      "  kvtide sim --trace weka --sessions odd --lanes 8 --capacity 0.5M,1M,1.5M --policy lru,affinity,belady --hints none,end,resume,wrong");
  return {app, [o] {
            const Status done = Simulation(*o).run();
            return done ? kExitDone : fail(done.error());
          }};
}

}  // namespace kvtide::app
