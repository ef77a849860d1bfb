// `kvtide replay`: plays agent sessions against servers of its own and shows what session awareness buys, at equal memory.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "apps/kvtide/child_process.h"
#include "apps/kvtide/commands.h"
#include "apps/kvtide/json_read.h"
#include "apps/kvtide/replay_figures.h"
#include "apps/kvtide/replay_html.h"
#include "apps/kvtide/replay_run.h"
#include "apps/kvtide/replay_server.h"
#include "apps/kvtide/replay_workload.h"
#include "apps/kvtide/sizes.h"

namespace kvtide::app {
namespace {

using base::Code;
using base::error;
using base::Result;
using base::Status;

constexpr size_t kProbeBytes = 6000;  // of the workload's own text, to measure bytes per token
constexpr int64_t kContextRound = 256;
constexpr double kContextMargin = 1.25;  // some texts have more tokens a byte than the measured mean
constexpr auto kProbeTimeout = std::chrono::minutes(5);

struct ReplayOptions {
  WorkloadOptions workload;
  std::string data_dir;
  std::vector<std::string> arms{"off", "infer", "on"};
  std::vector<double> capacity;
  std::string host_memory;
  std::string model, engine = "llamacpp", serve_args, json_file, html_file;
  int64_t device_tokens = 0;
  int64_t ctx_size = 0;
  int parallel = 4;
  int repeats = 1;
  bool synthetic = false;
  std::string command;
};

void add_flags(CLI::App& app, ReplayOptions& o) {
  const auto add = [&app](const char* name, auto& target, const char* help) { return app.add_option(name, target, help); };
  add("--users", o.workload.users, "agents at work at the same time")->check(CLI::Range(1, 1000))->capture_default_str();
  add("--arms", o.arms, "what is compared, of off, infer, on, wrong")->delimiter(',')->capture_default_str();
  add("--sessions", o.workload.sessions, "sessions in all; 0: three a user")->check(CLI::Range(0, 100000))->capture_default_str();
  add("--max-context", o.workload.max_context_tokens, "a session is cut at the first call with a longer prompt")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  add("--max-reply", o.workload.max_reply_tokens, "replies are cut to about this many tokens")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  add("--gap-scale", o.workload.gap_scale, "multiplies every pause")->check(CLI::NonNegativeNumber)->capture_default_str();
  add("--gap-cap", o.workload.gap_cap_s, "longest pause, seconds")->check(CLI::NonNegativeNumber)->capture_default_str();
  add("--seed", o.workload.seed, "which sessions, pauses and errors of estimate")->capture_default_str();
  add("--repeats", o.repeats, "runs of each arm, interleaved A B B A")->check(CLI::Range(1, 100))->capture_default_str();
  add("--capacity", o.capacity, "cache (device + host) as multiples of the peak live set, such as 0.25,0.5,1")->delimiter(',');
  add("--device-tokens", o.device_tokens, "KV cells on the device; 0: half of --capacity, at most ctx-size x parallel")
      ->check(CLI::Range(0, 1 << 30));
  add("--host-memory", o.host_memory, "host tier, such as 512M, instead of --capacity")->type_name("BYTES");
  add("--ctx-size", o.ctx_size, "tokens one request may use; 0: what the workload needs")->check(CLI::Range(0, 1 << 20));
  add("--parallel", o.parallel, "requests that run at once")->check(CLI::Range(1, 256))->capture_default_str();
  add("--model", o.model, "as for `kvtide serve`")->type_name("PATH|NAME");
  add("--engine", o.engine, "as for `kvtide serve`")->capture_default_str();
  add("--serve-args", o.serve_args, "more flags for every server, such as \"--threads 2\"");
  add("--data", o.data_dir, "folder with the recorded sessions (else $KVTIDE_DATA, else ../shared/data)")->type_name("DIR");
  app.add_flag("--synthetic", o.synthetic, "use generated sessions even where recorded ones are");
  add("--json", o.json_file, "write the figures here")->type_name("FILE");
  add("--html", o.html_file, "write a page with plots here")->type_name("FILE");
}

/// One moving line on a terminal; a line every ten seconds elsewhere.
class ProgressLine {
 public:
  void show(const std::string& label, const ArmProgress& p, size_t calls) {
    const auto text = [&] {
      std::array<char, 256> line{};
      std::snprintf(line.data(), line.size(), "%s  %zu/%zu calls, %zu failed, TTFT mean %.0f ms, %d:%02d", label.c_str(), p.done, calls,
                    p.failed, p.ttft_mean_ms, static_cast<int>(p.elapsed_s) / 60, static_cast<int>(p.elapsed_s) % 60);
      return std::string(line.data());
    }();
    if (terminal_) {
      std::fprintf(stderr, "\r\033[K%s", text.c_str());
      open_ = true;
    } else if (p.elapsed_s >= next_s_) {
      std::fprintf(stderr, "%s\n", text.c_str());
      next_s_ = p.elapsed_s + 10;
    }
    std::fflush(stderr);
  }
  void done() {
    if (std::exchange(open_, false)) std::fprintf(stderr, "\r\033[K");
    next_s_ = 10;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool open_ = false;
  double next_s_ = 10;
};

int64_t rounded_up(double value, int64_t step) { return (static_cast<int64_t>(value) + step - 1) / step * step; }

class Replay {
 public:
  Replay(ReplayOptions options, std::filesystem::path executable, TemporaryFolder folder)
      : options_(std::move(options)), executable_(std::move(executable)), folder_(std::move(folder)) {}

  Status run() {
    for (const std::string& name : options_.arms) {
      auto arm = find_arm(name);
      if (!arm) return tl::make_unexpected(arm.error());
      arms_.push_back(std::move(*arm));
    }
    if (!options_.host_memory.empty() && !options_.capacity.empty())
      return error(Code::kInvalidArgument, "--host-memory: give it or --capacity, not both");
    if (options_.host_memory.empty() && options_.capacity.empty()) options_.capacity = {0.5};
    for (const double factor : options_.capacity) {
      if (factor <= 0) return error(Code::kInvalidArgument, "--capacity: a multiple of the peak live set must be above 0");
    }
    for (const std::string& file : {options_.json_file, options_.html_file}) {
      if (auto s = writable(file); !s) return s;
    }
    if (options_.ctx_size == 0) {
      const double most = static_cast<double>(options_.workload.max_context_tokens) * kContextMargin +
                          2.0 * static_cast<double>(options_.workload.max_reply_tokens);
      options_.ctx_size = rounded_up(most, kContextRound);
    }
    device_given_ = options_.device_tokens > 0;
    if (!device_given_) options_.device_tokens = options_.ctx_size * options_.parallel;
    if (auto s = load(); !s) return s;
    if (auto s = probe(); !s) return s;
    if (auto s = load(); !s) return s;  // again, now that the token scale is known
    describe();
    Status result;
    for (const Capacity& capacity : capacities()) {
      result = run_capacity(capacity);
      if (!result) break;
    }
    if (report_.arms.empty()) return result;
    std::fputs(to_table(report_).c_str(), stdout);
    if (auto s = write_reports(); !s) return s;
    if (!result) return result;
    for (const ArmReport& arm : report_.arms) {
      if (arm.byte_mismatches > 0)
        return error(Code::kCorrupt, "arm " + arm.arm + ": reused blocks carried wrong bytes; no figure above counts");
    }
    return {};
  }

 private:
  static Status writable(const std::string& file) {
    if (file.empty()) return {};
    std::ofstream out(file, std::ios::app);
    if (out) return {};
    return error(Code::kInvalidArgument, "cannot write '" + file + "' (--json, --html)");
  }

  Status load() {
    const char* env = std::getenv("KVTIDE_DATA");
    auto file = options_.synthetic ? Result<std::optional<std::filesystem::path>>(std::nullopt)
                                   : find_trajectories(options_.data_dir, env == nullptr ? "" : env, executable_);
    if (!file) return tl::make_unexpected(file.error());
    if (!*file) {
      workload_ = synthetic_workload(options_.workload, scale_);
      if (workload_.sessions.empty()) return error(Code::kInvalidArgument, "--max-context: too small for two calls; give at least 2500");
      return {};
    }
    auto loaded = load_workload(**file, options_.workload, scale_);
    if (!loaded) return tl::make_unexpected(loaded.error());
    workload_ = std::move(*loaded);
    return {};
  }

  std::vector<std::string> server_flags(const Capacity& capacity) const {
    std::vector<std::string> flags{"--engine",
                                   options_.engine,
                                   "--ctx-size",
                                   std::to_string(options_.ctx_size),
                                   "--parallel",
                                   std::to_string(options_.parallel),
                                   "--device-tokens",
                                   std::to_string(capacity.device_tokens),
                                   "--host-memory",
                                   std::to_string(capacity.host_bytes),
                                   "--allow-forced-replies",
                                   "--log-level",
                                   "warn"};
    if (!options_.model.empty()) flags.insert(flags.end(), {"--model", options_.model});
    std::istringstream more(options_.serve_args);
    for (std::string word; more >> word;) flags.push_back(word);
    return flags;
  }

  /// Starts one server to learn the model's name, its bytes a token of text, and the bytes a token of KV.
  Status probe() {
    std::fprintf(stderr, "measuring tokens with %s ...\n", options_.model.empty() ? "the default model" : options_.model.c_str());
    auto server = ReplayServer::start(executable_, server_flags({.factor = 0, .device_tokens = options_.device_tokens, .host_bytes = 0}),
                                      folder_.path());
    if (!server) return tl::make_unexpected(server.error());
    HttpClient client(server->endpoint());
    const std::string text = sample_text(workload_, std::min(kProbeBytes, static_cast<size_t>(options_.ctx_size)));
    const auto bare = prompt_tokens(client, "x");
    if (!bare) return tl::make_unexpected(bare.error());
    const auto full = prompt_tokens(client, text);
    if (!full) return tl::make_unexpected(full.error());
    if (*full <= *bare) return error(Code::kInternal, "the server counts no tokens of a prompt; nothing could be measured");
    scale_.bytes_per_token = static_cast<double>(text.size()) / static_cast<double>(*full - *bare);
    if (const auto answer = client.get("/kv/v1/capabilities", kProbeTimeout); answer && answer->ok()) {
      const Json capabilities = answer->json();
      const Json& engine = member(capabilities, "engine");
      if (const int64_t tokens = int_of(engine, "block_tokens"); tokens > 0) {
        kv_bytes_per_token_ = static_cast<double>(int_of(engine, "block_bytes")) / static_cast<double>(tokens);
      }
    }
    if (kv_bytes_per_token_ <= 0 && !options_.capacity.empty()) {
      return error(Code::kUnavailable, "/kv/v1/capabilities tells no size of a block, so --capacity means nothing; give --host-memory");
    }
    if (const auto models = client.get("/v1/models", kProbeTimeout); models && models->ok()) {
      const Json answer = models->json();
      for (const Json& model : list_of(answer, "data")) report_.model = text_of(model, "id");
    }
    return server->stop();
  }

  Result<int64_t> prompt_tokens(HttpClient& client, const std::string& text) const {
    const Json message{{"role", "user"}, {"content", text}};
    const Json body{{"model", "kvtide-replay"}, {"messages", Json::array({message})}, {"max_tokens", 1}, {"temperature", 0}};
    const auto reply = client.post("/v1/chat/completions", body, kProbeTimeout);
    if (!reply) return tl::make_unexpected(reply.error());
    if (!reply->ok()) return error(Code::kUnavailable, "the server refused a prompt: " + reply->problem());
    return int_of(member(reply->json(), "usage"), "prompt_tokens");
  }

  std::vector<Capacity> capacities() const {
    if (options_.capacity.empty())
      return {{.factor = 0, .device_tokens = options_.device_tokens, .host_bytes = parse_bytes(options_.host_memory).value_or(0)}};
    std::vector<Capacity> out;
    for (const double factor : options_.capacity) {
      const double total = factor * static_cast<double>(report_.estimated_peak_live_tokens);
      Capacity capacity{.factor = factor, .device_tokens = options_.device_tokens, .host_bytes = 0};
      // Half of it on the device, in whole requests, from one to what runs at once; the host takes the rest.
      if (!device_given_) {
        const auto fitting = static_cast<int64_t>(total / 2) / options_.ctx_size;
        capacity.device_tokens = options_.ctx_size * std::clamp<int64_t>(fitting, 1, options_.parallel);
      }
      capacity.host_bytes = static_cast<int64_t>(std::max(0.0, total - static_cast<double>(capacity.device_tokens)) * kv_bytes_per_token_);
      out.push_back(capacity);
    }
    return out;
  }

  void describe() {
    report_.workload = workload_.name;
    report_.source = workload_.source;
    report_.synthetic = workload_.synthetic;
    report_.machine = machine_line();
    report_.command = options_.command;
    report_.seed = options_.workload.seed;
    report_.users = options_.workload.users;
    report_.repeats = options_.repeats;
    report_.sessions = workload_.sessions.size();
    report_.calls = workload_.calls();
    report_.max_context_tokens = options_.workload.max_context_tokens;
    report_.max_reply_tokens = options_.workload.max_reply_tokens;
    report_.gap_scale = options_.workload.gap_scale;
    report_.gap_cap_s = options_.workload.gap_cap_s;
    report_.bytes_per_token = scale_.bytes_per_token;
    report_.estimated_peak_live_tokens = peak_live_tokens(workload_, scale_);
    std::fprintf(stderr, "%s: %zu sessions, %zu calls, peak live set about %lld tokens (%.2f bytes a token)\n", workload_.source.c_str(),
                 report_.sessions, report_.calls, static_cast<long long>(report_.estimated_peak_live_tokens), scale_.bytes_per_token);
  }

  Status run_capacity(const Capacity& capacity) {
    std::vector<std::vector<ArmRun>> runs(arms_.size());
    Status result;
    for (int repeat = 0; repeat < options_.repeats && result; ++repeat) {
      for (size_t k = 0; k < arms_.size() && result; ++k) {
        const size_t index = repeat % 2 == 0 ? k : arms_.size() - 1 - k;  // A B B A: drift of the machine hits every arm alike
        auto run = run_one(arms_[index], capacity, repeat);
        if (run)
          runs[index].push_back(std::move(*run));
        else
          result = tl::make_unexpected(run.error());
      }
    }
    for (size_t k = 0; k < arms_.size(); ++k) {
      if (!runs[k].empty()) report_.arms.push_back(summarise(arms_[k], capacity, runs[k]));
    }
    return result;
  }

  Result<ArmRun> run_one(const ArmSpec& arm, const Capacity& capacity, int repeat) {
    auto flags = server_flags(capacity);
    flags.insert(flags.end(), {"--policy", arm.policy, "--hints", arm.server_hints ? "on" : "off"});
    auto server = ReplayServer::start(executable_, flags, folder_.path());
    if (!server) return tl::make_unexpected(std::move(server.error()).with("arm " + arm.name));
    std::array<char, 96> label{};
    std::snprintf(label.data(), label.size(), "[%s, device %lld + host %s, run %d/%d]", arm.name.c_str(),
                  static_cast<long long>(capacity.device_tokens), format_bytes(capacity.host_bytes).c_str(), repeat + 1, options_.repeats);
    RunOptions run_options;
    run_options.on_progress = [&](const ArmProgress& p) { progress_.show(label.data(), p, workload_.calls()); };
    auto run = run_arm(workload_, arm, server->endpoint(), run_options);
    progress_.done();
    const Status stopped = server->stop();
    if (!run) return run;
    if (!stopped) return tl::make_unexpected(base::Error(stopped.error()).with("arm " + arm.name));
    return run;
  }

  Status write_reports() const {
    const auto write = [](const std::string& file, const std::string& text) -> Status {
      if (file.empty()) return {};
      std::ofstream out(file, std::ios::trunc);
      out << text << std::flush;
      if (!out) return error(Code::kUnavailable, "cannot write '" + file + "'");
      std::fprintf(stdout, "written: %s\n", file.c_str());
      return {};
    };
    if (auto s = write(options_.json_file, to_json(report_).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); !s) return s;
    return options_.html_file.empty() ? Status() : write(options_.html_file, to_html(report_));
  }

  ReplayOptions options_;
  const std::filesystem::path executable_;
  const TemporaryFolder folder_;
  std::vector<ArmSpec> arms_;
  TokenScale scale_;
  double kv_bytes_per_token_ = 0;
  bool device_given_ = false;
  Workload workload_;
  ReplayReport report_;
  ProgressLine progress_;
};

/// The command line as it was given, quoted where a shell needs it. From the kernel, so that main need not pass it around.
std::string own_command() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string out, word;
  while (std::getline(in, word, '\0')) {
    const bool plain = word.find_first_of(" \t\"'$\\;&|<>()*?") == std::string::npos && !word.empty();
    if (out.empty()) word = std::filesystem::path(word).filename().string();
    out += (out.empty() ? "" : " ") + (plain ? word : "'" + word + "'");
  }
  return out;
}

int run_replay(const ReplayOptions& given) {
  ReplayOptions options = given;
  options.command = own_command();
  if (!options.host_memory.empty()) {
    if (const auto bytes = parse_bytes(options.host_memory); !bytes)
      return fail({Code::kInvalidArgument, "--host-memory: " + bytes.error().message});
  }
  std::error_code ec;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", ec);
  if (ec) return fail({Code::kUnavailable, "cannot find this program's own file: " + ec.message()});
  auto folder = TemporaryFolder::make();
  if (!folder) return fail(folder.error());
  const Status done = Replay(std::move(options), executable, std::move(*folder)).run();
  return done ? kExitDone : fail(done.error());
}

}  // namespace

Command add_replay(CLI::App& program) {
  CLI::App* replay = program.add_subcommand("replay", "play agent sessions against servers of its own and compare");
  replay->require_subcommand(1);
  CLI::App* swe = replay->add_subcommand("swe", "real SWE-bench Verified sessions, closed-loop users");
  replay->footer("Example:\n  kvtide replay swe --users 10 --arms off,infer,on --capacity 0.25,0.5,1 --html replay.html");
  swe->footer(
      "Each arm gets a fresh server and the same memory. off: block LRU; infer: life cycle inferred, silent clients; on: clients tell "
      "pauses and ends;\n"
      "wrong: hints that lie. Where no recorded sessions are found the workload is generated and calls itself synthetic.\n"
      "Examples:\n"
      "  kvtide replay swe --users 10 --arms off,infer,on --capacity 0.5 --repeats 3 --json swe.json --html swe.html\n"
      "  kvtide replay swe --users 4 --sessions 8 --max-context 3000 --gap-scale 0.2     (small)");
  const auto options = std::make_shared<ReplayOptions>();
  add_flags(*swe, *options);
  return {replay, [options] { return run_replay(*options); }};
}

}  // namespace kvtide::app
