#include "apps/kvtide/replay_run.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "apps/kvtide/json_read.h"

namespace kvtide::app {
namespace {

using base::Code;
using base::error;
using SteadyTime = std::chrono::steady_clock::time_point;
using Seconds = std::chrono::duration<double>;

constexpr auto kAdminTimeout = std::chrono::seconds(10);
constexpr int kStatusOk = 200;

const std::array<ArmSpec, 4>& arms() {
  static const std::array<ArmSpec, 4> kArms{{
      {"off", "block LRU, the client says nothing", "lru", false, ClientHints::kNone},
      {"infer", "life cycle inferred, the client says nothing", "affinity", false, ClientHints::kNone},
      {"on", "life cycle with the client's hints", "affinity", true, ClientHints::kTrue},
      {"wrong", "hints that belong to other sessions, inverted and late", "affinity", true, ClientHints::kWrong},
  }};
  return kArms;
}

double ms_since(SteadyTime start) { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count(); }

/// Waits that end early when the run is given up.
class Pause {
 public:
  /// False when the run ended meanwhile.
  bool until(SteadyTime when) {
    std::unique_lock lock(mutex_);
    return !ended_.wait_until(lock, when, [this] { return over_; });
  }
  void end() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
};

/// What all users share: results, and the contexts alive at this moment.
class Board {
 public:
  explicit Board(size_t users) : live_(users), playing_(users) {}

  void begin_session(size_t user, const std::string& name) {
    std::lock_guard lock(mutex_);
    playing_[user] = name;
  }
  void call_done(CallResult call) {
    std::lock_guard lock(mutex_);
    if (!call.failed) {
      live_[call.user] = call.prompt_tokens + call.completion_tokens;
      int64_t sum = 0;
      for (const int64_t tokens : live_) sum += tokens;
      run.peak_live_tokens = std::max(run.peak_live_tokens, sum);
      ttft_sum_ms_ += call.ttft_ms;
    } else {
      ++failed_;
    }
    run.calls.push_back(std::move(call));
  }
  void end_session(size_t user) {
    std::lock_guard lock(mutex_);
    live_[user] = 0;
  }
  void hint_done(const std::vector<std::string>& statuses, bool failed) {
    std::lock_guard lock(mutex_);
    ++run.hints_sent;
    run.hints_failed += failed;
    for (const std::string& status : statuses) ++run.hint_statuses[status];
  }
  void user_done() {
    {
      std::lock_guard lock(mutex_);
      ++users_done_;
    }
    changed_.notify_all();
  }
  /// Waits up to a second; true when every user is done.
  bool wait_second() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(1), [this] { return users_done_ == live_.size(); });
  }
  ArmProgress progress(SteadyTime start) const {
    std::lock_guard lock(mutex_);
    const size_t good = run.calls.size() - failed_;
    return {ms_since(start) / 1000, run.calls.size(), failed_, good == 0 ? 0 : ttft_sum_ms_ / static_cast<double>(good)};
  }
  /// The session that the user after `user` plays now: whom wrong hints hit.
  std::string neighbour(size_t user) const {
    std::lock_guard lock(mutex_);
    return playing_[(user + 1) % playing_.size()];
  }

  ArmRun run;  // guarded by mutex_ until all users are done

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> live_;
  std::vector<std::string> playing_;
  size_t users_done_ = 0;
  size_t failed_ = 0;
  double ttft_sum_ms_ = 0;
};

class User {
 public:
  User(size_t index, const Workload& workload, const ArmSpec& arm, const Endpoint& endpoint, const RunOptions& options, SteadyTime start,
       Board& board, Pause& pause)
      : index_(index),
        workload_(workload),
        arm_(arm),
        options_(options),
        start_(start),
        board_(board),
        pause_(pause),
        chat_(endpoint),
        admin_(endpoint) {}

  void play() {
    if (pause_.until(start_ + after(workload_.start_s[index_]))) {
      for (const size_t session : workload_.queues[index_]) {
        if (!play_session(session)) break;
      }
    }
    board_.user_done();
  }

 private:
  static std::chrono::nanoseconds after(double seconds) { return std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds)); }

  bool play_session(size_t number) {
    const ReplaySession& session = workload_.sessions[number];
    board_.begin_session(index_, session.name);
    Json messages = Json::array();
    const auto add = [&messages](const std::string& role, const std::string& content) {
      messages.push_back({{"role", role}, {"content", content}});
    };
    for (const Message& m : session.opening) add(m.role, m.content);
    for (size_t i = 0; i < session.turns.size(); ++i) {
      const Turn& turn = session.turns[i];
      call(number, i, session, turn, messages);
      if (i + 1 == session.turns.size()) break;
      add("assistant", turn.reply);
      for (const Message& m : turn.following) add(m.role, m.content);
      if (!wait_for_tool(session, turn)) return false;
    }
    if (arm_.client == ClientHints::kTrue) hint(native_hint("end", session.name));
    if (arm_.client == ClientHints::kWrong) hint(native_hint("end", board_.neighbour(index_)));
    board_.end_session(index_);
    return true;
  }

  Json request_body(const ReplaySession& session, const Turn& turn, const Json& messages) const {
    // The reply is given, so this limit only has to be high enough: a token is rarely less than two bytes.
    const auto limit = static_cast<int64_t>(turn.reply.size() / 2 + 16);
    Json body{{"model", "kvtide-replay"},
              {"messages", messages},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}},
              {"temperature", 0},
              {"max_tokens", limit},
              {"kvtide_forced_reply", turn.reply}};
    if (arm_.client != ClientHints::kNone) body["agent_hint"] = {{"session_id", session.name}, {"parent_session_id", session.name}};
    return body;
  }

  void call(size_t number, size_t turn_number, const ReplaySession& session, const Turn& turn, const Json& messages) {
    CallResult result{.user = index_, .session = number, .turn = turn_number, .why = {}, .finish_reason = {}};
    const Json body = request_body(session, turn, messages);
    const auto sent = std::chrono::steady_clock::now();
    result.start_s = Seconds(sent - start_).count();
    bool finished = false;
    const auto reply = chat_.post_stream("/v1/chat/completions", body, options_.silence_timeout, [&](std::string_view data) {
      if (data == "[DONE]") {
        finished = true;
        return;
      }
      const Json chunk = Json::parse(data, nullptr, /*allow_exceptions=*/false);
      if (take_chunk(chunk, result) && result.ttft_ms == 0) result.ttft_ms = ms_since(sent);
    });
    result.e2e_ms = ms_since(sent);
    if (!reply) {
      result.why = reply.error().message;
    } else if (reply->status != kStatusOk) {
      result.why = reply->problem();
    } else if (result.why.empty() && (!finished || result.finish_reason.empty())) {
      result.why = "the stream ended without a finish reason";
    } else if (result.why.empty() && result.prompt_tokens == 0) {
      result.why = "the stream ended without usage";
    }
    result.failed = !result.why.empty();
    if (result.ttft_ms == 0) result.ttft_ms = result.e2e_ms;
    board_.call_done(std::move(result));
  }

  /// The pause between two calls, with what this arm's client says during it. False when the run was given up.
  bool wait_for_tool(const ReplaySession& session, const Turn& turn) {
    const auto ended = std::chrono::steady_clock::now();
    const auto next = ended + after(turn.gap_s);
    const bool wrong = arm_.client == ClientHints::kWrong;
    if (arm_.client != ClientHints::kNone) {
      const double told_s = wrong ? 1.0 / std::max(turn.told_gap_s, 1e-3) : turn.told_gap_s;
      hint(native_hint("pause", wrong ? board_.neighbour(index_) : session.name,
                       {{"tool", session.tool}, {"expected_ms", static_cast<int64_t>(told_s * 1000)}}));
      if (turn.gap_s > options_.prefetch_gap_min_s && !wrong) {
        if (!pause_.until(next - after(options_.prefetch_lead_s))) return false;
        hint(native_hint("prefetch", session.name, {{"deadline_ms", static_cast<int64_t>(options_.prefetch_lead_s * 1000)}}));
      }
    }
    const bool on = pause_.until(next);
    if (wrong && on) hint(native_hint("prefetch", board_.neighbour(index_)));  // late, and for somebody else
    return on;
  }

  void hint(const Json& body) {
    const auto reply = admin_.post("/kv/v1/hints", body, kAdminTimeout);
    std::vector<std::string> statuses;
    const bool good = reply && reply->ok();
    if (good) {
      const Json answer = reply->json();
      for (const char* key : {"receipts", "results", "hints", "kv_hint_result"}) {
        for (const Json& receipt : list_of(answer, key)) statuses.push_back(text_of(receipt, "verb") + "/" + text_of(receipt, "status"));
        if (!statuses.empty()) break;
      }
    }
    board_.hint_done(statuses, !good);
  }

  const size_t index_;
  const Workload& workload_;
  const ArmSpec& arm_;
  const RunOptions& options_;
  const SteadyTime start_;
  Board& board_;
  Pause& pause_;
  HttpClient chat_;
  HttpClient admin_;
};

}  // namespace

base::Result<ArmSpec> find_arm(std::string_view name) {
  std::string names;
  for (const ArmSpec& arm : arms()) {
    if (arm.name == name) return arm;
    names += (names.empty() ? "" : ", ") + arm.name;
  }
  return error(Code::kInvalidArgument, "--arms: no arm is called '" + std::string(name) + "'; there are " + names);
}

Json native_hint(std::string_view verb, const std::string& session_id, Json more) {
  more["verb"] = verb;
  more["session_id"] = session_id;
  return {{"hints", Json::array({std::move(more)})}};
}

bool take_chunk(const Json& chunk, CallResult& call) {
  if (const Json& failure = member(chunk, "error"); !failure.is_null()) {
    call.why = failure.is_object() ? text_of(failure, "message") : failure.dump();
    if (call.why.empty()) call.why = "the server reported an error in the stream";
    return false;
  }
  bool text = false;
  for (const Json& choice : list_of(member(chunk, "choices"), "choices")) {
    const Json& delta = member(choice, "delta");
    text |= !text_of(delta, "content").empty() || !text_of(delta, "reasoning_content").empty() ||
            !list_of(member(delta, "tool_calls"), "").empty();
    if (auto reason = text_of(choice, "finish_reason"); !reason.empty()) call.finish_reason = std::move(reason);
  }
  if (const Json& usage = member(chunk, "usage"); usage.is_object()) {
    call.prompt_tokens = int_of(usage, "prompt_tokens");
    call.completion_tokens = int_of(usage, "completion_tokens");
  }
  if (const Json& kv = member(chunk, "kv"); kv.is_object()) {
    const Json& reused = member(kv, "reused");
    call.device_tokens = int_of(kv, "device_tokens", int_of(reused, "device"));
    call.host_tokens = int_of(kv, "host_tokens", int_of(reused, "host"));
    call.recomputed_tokens = int_of(kv, "recomputed_tokens", int_of(kv, "recomputed"));
    call.compulsory_tokens = int_of(kv, "compulsory_tokens", int_of(kv, "compulsory"));
    call.queue_ms = number_of(kv, "queue_ms");
    call.load_ms = number_of(kv, "load_ms");
  }
  return text;
}

std::vector<TierFigure> parse_tiers(const Json& answer) {
  std::vector<TierFigure> out;
  for (const Json& tier : list_of(answer, "tiers")) {
    out.push_back({text_of(tier, "name"), int_of(tier, "budget_bytes"), int_of(tier, "used_bytes"), int_of(tier, "peak_bytes")});
  }
  return out;
}

base::Result<ArmRun> run_arm(const Workload& workload, const ArmSpec& arm, const Endpoint& endpoint, const RunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Board board(workload.queues.size());
  board.run.arm = arm.name;
  Pause pause;
  HttpClient admin(endpoint);
  std::vector<OccupancySample> occupancy;
  int unanswered = 0;
  {
    std::vector<std::jthread> users;
    for (size_t u = 0; u < workload.queues.size(); ++u) {
      users.emplace_back([&, u] { User(u, workload, arm, endpoint, options, start, board, pause).play(); });
    }
    while (!board.wait_second()) {
      if (const auto reply = admin.get("/kv/v1/tiers", kAdminTimeout); reply && reply->ok()) {
        unanswered = 0;
        occupancy.push_back({ms_since(start) / 1000, parse_tiers(reply->json())});
      } else if (!reply && reply.error().code == Code::kUnavailable && ++unanswered == 5) {
        pause.end();  // the server is gone: let the users end
      }
      if (options.on_progress) options.on_progress(board.progress(start));
    }
  }
  ArmRun run = std::move(board.run);
  run.occupancy = std::move(occupancy);
  run.wall_s = ms_since(start) / 1000;
  if (unanswered >= 5) return error(Code::kUnavailable, "arm " + arm.name + ": the server stopped answering");
  const auto tiers = admin.get("/kv/v1/tiers", kAdminTimeout);
  const auto stats = admin.get("/kv/v1/stats", kAdminTimeout);
  if (!tiers || !tiers->ok() || !stats || !stats->ok()) {
    return error(Code::kUnavailable, "arm " + arm.name + ": /kv/v1/tiers or /kv/v1/stats did not answer, so nothing could be checked");
  }
  run.tiers = parse_tiers(tiers->json());
  run.server_stats = stats->json();
  if (!member(run.server_stats, "byte_mismatches").is_number()) {
    return error(Code::kUnavailable, "arm " + arm.name + ": /kv/v1/stats tells no byte_mismatches, so nothing could be checked");
  }
  run.byte_mismatches = int_of(run.server_stats, "byte_mismatches");
  return run;
}

}  // namespace kvtide::app
