#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/readers/build.h"
#include "sim/readers/json_cursor.h"
#include "sim/readers/readers.h"

namespace kvtide::sim {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kBlockTokensMax = 65'536;
constexpr size_t kLabelDigitsMax = 16;

/// One line as written.
struct Line {
  double t_s = -1;
  std::string session;
  std::string parent;
  int64_t prompt = -1;
  int64_t reply = -1;
  Stop stop = Stop::kUnknown;
  std::string tool;
  int64_t keep = 0;
  bool has_blocks = false;
  std::vector<uint64_t> blocks;

  void clear() {
    t_s = -1;
    session.clear();
    parent.clear();
    prompt = reply = -1;
    stop = Stop::kUnknown;
    tool.clear();
    keep = 0;
    has_blocks = false;
    blocks.clear();
  }
};

bool read_stop(JsonCursor& in, Stop& stop) {
  std::string_view word;
  if (!in.read_word(word)) return false;
  if (word == "tool_use")
    stop = Stop::kToolUse;
  else if (word == "end")
    stop = Stop::kEnd;
  else if (word.empty())
    stop = Stop::kUnknown;
  else
    return in.fail("expected \"end\", \"tool_use\" or \"\"");
  return true;
}

bool read_blocks(JsonCursor& in, std::vector<uint64_t>& blocks) {
  std::string_view digits;
  blocks.clear();
  for (in.enter_array(); in.next_element() && in.read_word(digits);) {
    uint64_t label = 0;
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), label, 16);
    if (failed != std::errc() || end != digits.data() + digits.size() || digits.size() > kLabelDigitsMax) {
      return in.fail("expected 1 to 16 hexadecimal digits for each block");
    }
    blocks.push_back(label);
  }
  return in.is_ok();
}

bool parse_line(JsonCursor& in, Line& line) {
  line.clear();
  std::string_view key;
  for (in.enter_object(); in.next_key(key);) {
    if (key == "t")
      in.read_number(line.t_s, 0, static_cast<double>(kTraceNsMax / base::kSecond));
    else if (key == "session")
      in.read_text(line.session, kNameBytesMax);
    else if (key == "parent")
      in.read_text(line.parent, kNameBytesMax);
    else if (key == "prompt")
      in.read_int(line.prompt, 0, INT32_MAX);
    else if (key == "reply")
      in.read_int(line.reply, 0, INT32_MAX);
    else if (key == "stop")
      read_stop(in, line.stop);
    else if (key == "tool")
      in.read_text(line.tool, kNameBytesMax);
    else if (key == "keep")
      in.read_int(line.keep, 0, INT32_MAX);
    else if (key == "blocks")
      line.has_blocks = read_blocks(in, line.blocks);
    else
      in.skip();
  }
  if (!in.at_end()) return false;
  if (line.t_s < 0) return in.fail_field("t", "it is missing");
  if (line.session.empty()) return in.fail_field("session", "it is missing");
  if (line.prompt < 0) return in.fail_field("prompt", "it is missing");
  if (line.reply < 0) return in.fail_field("reply", "it is missing");
  if (!line.has_blocks) return in.fail_field("blocks", "it is missing");
  if (line.parent == line.session) return in.fail_field("parent", "the session itself");
  return true;
}

class FileParser {
 public:
  explicit FileParser(Trace& trace) : trace_(trace), tree_(trace.parent), tools_(trace) {}

  bool parse_header(JsonCursor& in) {
    int64_t version = -1;
    int64_t block_tokens = -1;
    bool has_absolute = false;
    std::string_view key;
    for (in.enter_object(); in.next_key(key);) {
      if (key == "kvtide_trace")
        in.read_int(version, 0, INT32_MAX);
      else if (key == "block_tokens")
        in.read_int(block_tokens, 1, kBlockTokensMax);
      else if (key == "absolute")
        has_absolute = in.read_bool(trace_.absolute);
      else
        in.skip();
    }
    if (!in.at_end()) return false;
    if (version < 0) return in.fail_field("kvtide_trace", "it is missing: is this a trace in kvtide's own format?");
    if (version != kVersion) {
      is_unsupported_ = true;
      return in.fail_field("kvtide_trace", "version " + std::to_string(version) + " is not known, only " + std::to_string(kVersion));
    }
    if (block_tokens < 0) return in.fail_field("block_tokens", "it is missing");
    if (!has_absolute) return in.fail_field("absolute", "it is missing");
    trace_.block_tokens = static_cast<int32_t>(block_tokens);
    return true;
  }
  bool is_unsupported() const { return is_unsupported_; }

  bool parse_request(JsonCursor& in) {
    if (!parse_line(in, line_)) return false;
    Last* last = nullptr;
    if (!find_session(in, last)) return false;
    TraceRequest request;
    request.at_ns = std::llround(line_.t_s * static_cast<double>(base::kSecond));
    request.prompt_tokens = static_cast<int32_t>(line_.prompt);
    request.reply_tokens = static_cast<int32_t>(line_.reply);
    request.stop = line_.stop;
    if (!tools_.index_of(line_.tool, request.tool)) return in.fail_field("tool", "over 65,535 names");
    if (!find_leaf(in, *last, request)) return false;
    *last = {last->session, request.leaf, request.prompt_tokens / trace_.block_tokens};
    trace_.sessions[last->session].requests.push_back(request);
    return true;
  }

 private:
  /// The last line of a session.
  struct Last {
    size_t session = 0;
    Node leaf = kNoNode;
    int32_t blocks = 0;
  };

  /// Where the line's session stands, made when unknown. Only its first line says who its parent is; one that has not spoken yet, as
  /// when a recording starts in the middle, is none.
  bool find_session(JsonCursor& in, Last*& last) {
    const auto [found, is_new] = known_.try_emplace(line_.session);
    last = &found->second;
    if (!is_new) return true;
    if (trace_.sessions.size() >= INT32_MAX) return in.fail_field("session", "too many of them");
    TraceSession session;
    session.name = line_.session;
    const auto parent = line_.parent.empty() ? known_.end() : known_.find(line_.parent);
    if (parent == known_.end()) {
      session.number = roots_++;
    } else {
      session.parent = static_cast<int32_t>(parent->second.session);
      session.number = trace_.sessions[parent->second.session].number;
    }
    last->session = trace_.sessions.size();
    trace_.sessions.push_back(std::move(session));
    return true;
  }

  bool find_leaf(JsonCursor& in, const Last& last, TraceRequest& request) {
    if (line_.keep > last.blocks) {
      return in.fail_field("keep", "over the " + std::to_string(last.blocks) + " blocks of the session's line before");
    }
    const int64_t full = line_.prompt / trace_.block_tokens;
    if (line_.keep + static_cast<int64_t>(line_.blocks.size()) != full) {
      return in.fail_field("blocks", "with \"keep\" they must be the " + std::to_string(full) + " full blocks of the prompt");
    }
    if (trace_.parent.size() + line_.blocks.size() > kNodesMax) return in.fail_field("blocks", "too many in the file");
    Node node = last.leaf;
    for (int64_t i = line_.keep; i < last.blocks; ++i) node = trace_.parent[node];
    for (const uint64_t label : line_.blocks) node = tree_.child(node, 0, label);
    request.leaf = node;
    return true;
  }

  Trace& trace_;
  NodeTree tree_;
  ToolNames tools_;
  std::unordered_map<std::string, Last> known_;
  int32_t roots_ = 0;
  Line line_;
  bool is_unsupported_ = false;
};

}  // namespace

base::Result<Trace> read_jsonl(LineReader& lines, std::string name) {
  Trace trace;
  trace.name = std::move(name);
  FileParser parser(trace);
  bool has_header = false;
  std::string_view line;
  while (lines.next(line)) {
    JsonCursor in(line);
    const bool ok = has_header ? parser.parse_request(in) : parser.parse_header(in);
    if (!ok) {
      auto failed = lines.corrupt(in.problem());
      if (parser.is_unsupported()) failed.value().code = base::Code::kUnsupported;
      return failed;
    }
    has_header = true;
  }
  if (!lines.status()) return tl::make_unexpected(lines.status().error());
  if (!has_header) return lines.corrupt("the file is empty");
  for (TraceSession& session : trace.sessions) sort_requests(session);
  return trace;
}

base::Result<Trace> read_jsonl(const std::filesystem::path& file) {
  auto lines = LineReader::open(file);
  if (!lines) return tl::make_unexpected(lines.error());
  return read_jsonl(*lines, file.filename().string());
}

}  // namespace kvtide::sim
