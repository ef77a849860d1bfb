// What `kvtide replay` plays: agent sessions cut to a context, with pauses and the users who play them.
//
// Everything here follows from (data, options, seed) alone, so every arm of a run sees the same calls, pauses and errors of estimate.
//
// Threading: value types and pure functions.
// Errors: kNotFound (no data folder), kCorrupt (unreadable file or a line that is no trajectory, named by number).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/status.h"

namespace kvtide::app {

struct Message {
  std::string role;
  std::string content;
};

/// One model call's reply and what comes before the next call.
struct Turn {
  std::string reply;               // recorded, cut to max_reply_tokens
  std::vector<Message> following;  // tool observations; the next prompt is this prompt + reply + these
  double gap_s = 0;                // pause before the next call
  double told_gap_s = 0;           // the client's estimate of it
  int64_t prompt_tokens = 0;       // estimated, of this call's prompt
};

struct ReplaySession {
  std::string name;
  std::string tool;              // whose result the pauses wait for
  std::vector<Message> opening;  // system prompt and task
  std::vector<Turn> turns;       // at least one
};

/// Tokens of a text, estimated. `bytes_per_token` is measured against the served model before a run.
struct TokenScale {
  double bytes_per_token = 3.3;
  int64_t per_message = 5;  // what a chat template adds
  int64_t text(size_t bytes) const { return static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_token) + 1; }
  int64_t message(size_t bytes) const { return text(bytes) + per_message; }
};

struct WorkloadOptions {
  int users = 10;
  int sessions = 0;  // in all; 0: three a user
  int64_t max_context_tokens = 4096;
  int64_t max_reply_tokens = 128;
  double gap_scale = 1.0;
  double gap_cap_s = 1200;
  uint64_t seed = 1;
};

struct Workload {
  std::string name;    // "swe" or "swe (synthetic)"
  std::string source;  // one line for reports
  bool synthetic = false;
  std::vector<ReplaySession> sessions;
  std::vector<std::vector<size_t>> queues;  // per user: indexes into sessions, played in order
  std::vector<double> start_s;              // per user: when it begins
  size_t calls() const;
};

/// The pause before a next call, in seconds: 61 % in 0.02-1, 27 % in 1-10, 8 % in 10-60, 4 % in 60-1200, log-uniform inside each.
double draw_gap_s(base::Random& random);

/// A client's estimate of `gap_s`: times a log-normal error of sigma 0.5.
double draw_told_gap_s(double gap_s, base::Random& random);

/// `text` cut to `bytes_max` bytes at most, never inside a UTF-8 character.
std::string cut_text(std::string_view text, size_t bytes_max);

/// A session from a trajectory's messages: a turn for each assistant message, up to (without) the first call whose prompt passes
/// max_context_tokens. Nullopt when that leaves fewer than two calls. `random` draws the pauses.
std::optional<ReplaySession> cut_session(std::string name, const std::vector<Message>& messages, const WorkloadOptions& options,
                                         const TokenScale& scale, base::Random& random);

/// The folder with the SWE-bench trajectories: `data_dir` (or the folder itself), then `env_dir` (both may be empty; when one is given
/// and holds none, that is an error), then ../shared/data beside the current directory and beside the checkout of the executable.
/// nullopt: none, use generated sessions.
base::Result<std::optional<std::filesystem::path>> find_trajectories(const std::string& data_dir, const std::string& env_dir,
                                                                     const std::filesystem::path& executable);

/// The lines of a .jsonl.zst file.
base::Result<std::vector<std::string>> read_zstd_lines(const std::filesystem::path& file);

/// The messages of one line of trajs_slim.jsonl.
struct Trajectory {
  std::string name;
  std::vector<Message> messages;
};
base::Result<Trajectory> parse_trajectory(const std::string& line, size_t line_number);

/// Sessions of the trajectories in `file`, chosen and dealt to users by the seed.
base::Result<Workload> load_workload(const std::filesystem::path& file, const WorkloadOptions& options, const TokenScale& scale);

/// A generated agent workload of the same shape: one system prompt for all, tasks, replies with one command, growing observations.
Workload synthetic_workload(const WorkloadOptions& options, const TokenScale& scale);

/// The largest number of context tokens that are alive at once when all users advance call by call, the common opening counted once.
int64_t peak_live_tokens(const Workload& workload, const TokenScale& scale);

/// Pieces of the workload's own texts, about `bytes` in all: what the token scale is measured with.
std::string sample_text(const Workload& workload, size_t bytes);

}  // namespace kvtide::app
