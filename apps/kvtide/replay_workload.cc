#include "apps/kvtide/replay_workload.h"

#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "apps/kvtide/data_folders.h"

namespace kvtide::app {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::error;
using base::Random;

constexpr char kTrajectoryDir[] = "swebench-verified-mini-swe-agent";
constexpr char kTrajectoryFile[] = "trajs_slim.jsonl.zst";
constexpr double kToldSigma = 0.5;
constexpr double kStartSpreadS = 5.0;  // users begin within this time, so that the first calls do not all queue behind each other

double log_uniform(double low, double high, Random& random) { return low * std::pow(high / low, random.unit()); }

/// Deals sessions to users round robin and draws the start times.
void deal(Workload& workload, const WorkloadOptions& options) {
  workload.queues.assign(static_cast<size_t>(options.users), {});
  for (size_t i = 0; i < workload.sessions.size(); ++i) workload.queues[i % workload.queues.size()].push_back(i);
  Random random(options.seed ^ 0x57a7ULL);
  for (int u = 0; u < options.users; ++u)
    workload.start_s.push_back(random.unit() * std::min(kStartSpreadS, kStartSpreadS * options.gap_scale));
}

size_t wanted_sessions(const WorkloadOptions& options) {
  return static_cast<size_t>(options.sessions > 0 ? options.sessions : options.users * 3);
}

fs::path trajectories_in(const fs::path& dir) {
  std::error_code ec;
  for (const fs::path& candidate : {dir / kTrajectoryDir / kTrajectoryFile, dir / kTrajectoryFile}) {
    if (fs::is_regular_file(candidate, ec)) return candidate;
  }
  return {};
}

}  // namespace

size_t Workload::calls() const {
  size_t sum = 0;
  for (const ReplaySession& s : sessions) sum += s.turns.size();
  return sum;
}

double draw_gap_s(Random& random) {
  const double which = random.unit();
  if (which < 0.61) return log_uniform(0.02, 1, random);
  if (which < 0.88) return log_uniform(1, 10, random);
  if (which < 0.96) return log_uniform(10, 60, random);
  return log_uniform(60, 1200, random);
}

double draw_told_gap_s(double gap_s, Random& random) {
  // Box-Muller; 1 - unit() is never zero.
  const double z = std::sqrt(-2 * std::log(1 - random.unit())) * std::cos(2 * std::numbers::pi * random.unit());
  return gap_s * std::exp(kToldSigma * z);
}

std::string cut_text(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

std::optional<ReplaySession> cut_session(std::string name, const std::vector<Message>& messages, const WorkloadOptions& options,
                                         const TokenScale& scale, Random& random) {
  ReplaySession session{.name = std::move(name), .tool = "bash", .opening = {}, .turns = {}};
  const auto reply_bytes = static_cast<size_t>(static_cast<double>(options.max_reply_tokens) * scale.bytes_per_token);
  int64_t prompt_tokens = 0;
  for (const Message& m : messages) {
    if (m.role != "assistant") {
      (session.turns.empty() ? session.opening : session.turns.back().following).push_back(m);
      prompt_tokens += scale.message(m.content.size());
      continue;
    }
    if (prompt_tokens > options.max_context_tokens) break;
    Turn turn{.reply = cut_text(m.content, reply_bytes), .following = {}, .gap_s = 0, .told_gap_s = 0, .prompt_tokens = prompt_tokens};
    if (turn.reply.empty()) turn.reply = "ok";
    turn.gap_s = std::min(draw_gap_s(random) * options.gap_scale, options.gap_cap_s);
    turn.told_gap_s = draw_told_gap_s(turn.gap_s, random);
    prompt_tokens += scale.message(turn.reply.size());
    session.turns.push_back(std::move(turn));
  }
  if (session.turns.size() < 2 || session.opening.empty()) return std::nullopt;
  session.turns.back().following.clear();
  session.turns.back().gap_s = 0;
  return session;
}

base::Result<std::optional<fs::path>> find_trajectories(const std::string& data_dir, const std::string& env_dir,
                                                        const fs::path& executable) {
  for (const auto& [dir, who] : {std::pair{data_dir, "--data"}, std::pair{env_dir, "KVTIDE_DATA"}}) {
    if (dir.empty()) continue;
    if (auto file = trajectories_in(dir); !file.empty()) return file;
    return error(Code::kNotFound, std::string(who) + ": no " + kTrajectoryDir + "/" + kTrajectoryFile + " in '" + dir + "'");
  }
  for (const fs::path& dir : default_data_folders(executable)) {
    if (auto file = trajectories_in(dir); !file.empty()) return file;
  }
  return std::nullopt;
}

base::Result<std::vector<std::string>> read_zstd_lines(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return error(Code::kUnavailable, "cannot read " + file.string());
  const std::string packed((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  ZSTD_inBuffer input{packed.data(), packed.size(), 0};
  std::vector<char> chunk(ZSTD_DStreamOutSize());
  std::vector<std::string> lines;
  std::string line;
  size_t left = 1;
  for (bool more = !packed.empty(); more;) {
    ZSTD_outBuffer output{chunk.data(), chunk.size(), 0};
    left = ZSTD_decompressStream(stream.get(), &output, &input);
    if (ZSTD_isError(left)) return error(Code::kCorrupt, file.string() + ": " + ZSTD_getErrorName(left));
    for (std::string_view rest(chunk.data(), output.pos); !rest.empty();) {
      const size_t end = rest.find('\n');
      line.append(rest.substr(0, end));
      if (end == std::string_view::npos) break;
      lines.push_back(std::exchange(line, {}));
      rest.remove_prefix(end + 1);
    }
    more = input.pos < input.size || output.pos == output.size;
  }
  if (left != 0) return error(Code::kCorrupt, file.string() + ": ends in the middle of a frame");
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

base::Result<Trajectory> parse_trajectory(const std::string& line, size_t line_number) {
  const auto bad = [&](const char* why) {
    return error(Code::kCorrupt, "trajectory file, line " + std::to_string(line_number) + ": " + why);
  };
  const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return bad("not a JSON object");
  const auto messages = parsed.find("messages");
  if (messages == parsed.end() || !messages->is_array()) return bad("'messages' is not an array");
  const auto text = [](const nlohmann::json& o, const char* key) {
    const auto it = o.find(key);
    return it != o.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  Trajectory out{.name = text(parsed, "instance_id"), .messages = {}};
  for (const auto& m : *messages) {
    if (!m.is_object()) return bad("a message is not an object");
    out.messages.push_back({text(m, "role"), text(m, "content")});
  }
  return out;
}

base::Result<Workload> load_workload(const fs::path& file, const WorkloadOptions& options, const TokenScale& scale) {
  auto lines = read_zstd_lines(file);
  if (!lines) return tl::make_unexpected(lines.error());
  std::vector<size_t> order(lines->size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Random shuffle(options.seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[shuffle.below(i)]);

  Workload out{.name = "swe",
               .source = "SWE-bench Verified, recorded sessions of mini-swe-agent",
               .synthetic = false,
               .sessions = {},
               .queues = {},
               .start_s = {}};
  for (const size_t index : order) {
    if (out.sessions.size() >= wanted_sessions(options)) break;
    auto trajectory = parse_trajectory((*lines)[index], index + 1);
    if (!trajectory) return tl::make_unexpected(trajectory.error());
    Random random(options.seed * 0x9e3779b97f4a7c15ULL + index);  // its own stream: pauses do not depend on how many were asked for
    if (auto session = cut_session(trajectory->name, trajectory->messages, options, scale, random))
      out.sessions.push_back(std::move(*session));
  }
  if (out.sessions.empty()) {
    return error(Code::kInvalidArgument, "--max-context: no session has two calls within " + std::to_string(options.max_context_tokens) +
                                             " tokens; give at least 2500");
  }
  deal(out, options);
  return out;
}

int64_t peak_live_tokens(const Workload& workload, const TokenScale& scale) {
  struct Cursor {
    size_t in_queue = 0, turn = 0;
  };
  std::vector<Cursor> cursors(workload.queues.size());
  int64_t peak = 0;
  for (bool running = true; running;) {
    running = false;
    int64_t live = 0, users = 0, shared = 0;
    for (size_t u = 0; u < cursors.size(); ++u) {
      Cursor& at = cursors[u];
      if (at.in_queue >= workload.queues[u].size()) continue;
      const ReplaySession& session = workload.sessions[workload.queues[u][at.in_queue]];
      const Turn& turn = session.turns[at.turn];
      live += turn.prompt_tokens + scale.message(turn.reply.size());
      shared = scale.message(session.opening.front().content.size());
      ++users;
      running = true;
      if (++at.turn == session.turns.size()) at = {at.in_queue + 1, 0};
    }
    if (users > 1) live -= shared * (users - 1);
    peak = std::max(peak, live);
  }
  return peak;
}

std::string sample_text(const Workload& workload, size_t bytes) {
  constexpr size_t kPiece = 512;
  std::vector<std::string_view> texts;
  for (const ReplaySession& s : workload.sessions) {
    for (const Message& m : s.opening) texts.push_back(m.content);
    for (const Turn& t : s.turns) {
      texts.push_back(t.reply);
      for (const Message& m : t.following) texts.push_back(m.content);
    }
  }
  size_t total = 0;
  for (const auto text : texts) total += text.size();
  // Pieces at even distances over all the text, so that long observations weigh as much as they do in prompts.
  const size_t pieces = std::max<size_t>(1, std::min(bytes, total) / kPiece);
  const size_t stride = std::max<size_t>(kPiece, total / pieces);
  std::string out;
  size_t begin = 0, next = 0;
  for (const auto text : texts) {
    for (; next < begin + text.size() && out.size() < bytes; next += stride) {
      size_t from = next - begin;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      out += cut_text(text.substr(from), kPiece);
    }
    begin += text.size();
  }
  return out;
}

Workload synthetic_workload(const WorkloadOptions& options, const TokenScale& scale) {
  static constexpr const char* kWords[] = {"parser", "cache",  "queryset", "matrix", "node",   "figure",  "token",
                                           "schema", "loader", "field",    "signal", "render", "session", "index",
                                           "filter", "model",  "axis",     "stream", "config", "buffer"};
  static constexpr const char* kVerbs[] = {"grep -rn", "sed -n '1,80p'", "python3 -m pytest -q", "cat", "git diff --", "ls -la"};
  const auto word = [&](Random& r) { return std::string(kWords[r.below(std::size(kWords))]); };
  const auto code_line = [&](Random& r) {
    const std::string a = word(r), b = word(r);
    return "    def " + a + "_" + b + std::to_string(r.below(1000)) + "(self, " + word(r) + "=None):  # " + word(r) + " -> " + word(r) +
           "\n";
  };
  Workload out{.name = "swe (synthetic)",
               .source = "synthetic: generated sessions of the same shape, no recorded data",
               .synthetic = true,
               .sessions = {},
               .queues = {},
               .start_s = {}};
  Message system{"system",
                 "You are an agent that fixes bugs in a repository. Each reply holds one THOUGHT and one bash block with one command. "
                 "You see its output before you go on. When the tests pass, submit the change."};
  for (size_t i = 0; i < wanted_sessions(options); ++i) {
    Random random(options.seed * 0x9e3779b97f4a7c15ULL + i);
    std::vector<Message> messages{system};
    std::string task = "Task " + std::to_string(i) + ": the " + word(random) + " of the " + word(random) + " is wrong after an update.\n";
    for (uint64_t n = 30 + random.below(40); n > 0; --n) task += code_line(random);
    messages.push_back({"user", std::move(task)});
    // As many calls as fill any context asked for; cut_session() stops where it is full.
    for (int64_t bytes = 0; bytes < static_cast<int64_t>(static_cast<double>(options.max_context_tokens) * scale.bytes_per_token * 1.5);) {
      const std::string file = word(random) + "/" + word(random) + ".py";
      std::string reply = "THOUGHT: I will look at the " + word(random) + " in " + file + " because the " + word(random) +
                          " depends on it.\n\n```bash\n" + kVerbs[random.below(std::size(kVerbs))] + " " + file + "\n```";
      std::string observation = "<returncode>0</returncode>\n<output>\n";
      // Log-uniform sizes: most outputs are a few lines, some are pages.
      for (auto n = static_cast<int64_t>(log_uniform(1, 60, random)); n > 0; --n) observation += code_line(random);
      observation += "</output>";
      bytes += static_cast<int64_t>(reply.size() + observation.size());
      messages.push_back({"assistant", std::move(reply)});
      messages.push_back({"user", std::move(observation)});
    }
    if (auto session = cut_session("synthetic-" + std::to_string(i), messages, options, scale, random))
      out.sessions.push_back(std::move(*session));
  }
  deal(out, options);
  return out;
}

}  // namespace kvtide::app
