// A line is one session; its prompts are lists of block ids that mostly repeat the list before. So the text of a list is compared with
// the text of the last one, and only what follows the first difference is parsed: 440 MB cost little more than their decompression.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/readers/build.h"
#include "sim/readers/json_cursor.h"
#include "sim/readers/readers.h"

namespace kvtide::sim {
namespace {

constexpr int32_t kBlockTokens = 64;
constexpr int kDepthMax = 16;  // of sub-agents in sub-agents

size_t common_prefix(std::string_view a, std::string_view b) {
  constexpr size_t kStride = 256;  // memcmp is far faster than a loop over characters
  const size_t size = std::min(a.size(), b.size());
  size_t at = 0;
  while (at + kStride <= size && std::memcmp(a.data() + at, b.data() + at, kStride) == 0) at += kStride;
  while (at < size && a[at] == b[at]) ++at;
  return at;
}

/// The path of the last prompt, and the text that named it.
class IdPath {
 public:
  IdPath(std::vector<Node>& parent, uint32_t scope) : tree_(parent), scope_(scope) {}

  /// Makes `text`, ids with commas between, the path. The text must live until the next call. False: it is no such list.
  bool follow(std::string_view text) {
    const size_t common = common_prefix(text_, text);
    // An id whose end lies before the first difference is followed by the same character in both, so it is the same number.
    const size_t kept = static_cast<size_t>(std::lower_bound(ends_.begin(), ends_.end(), common) - ends_.begin());
    ends_.resize(kept);
    nodes_.resize(kept);
    text_ = text;
    size_t at = kept > 0 ? ends_.back() : 0;
    const auto pass_space = [&] {
      while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
    };
    for (pass_space(); at < text.size(); pass_space()) {
      if (!ends_.empty()) {
        if (text[at] != ',') return false;
        ++at;
        pass_space();
      }
      uint64_t id = 0;
      const auto [end, failed] = std::from_chars(text.data() + at, text.data() + text.size(), id);
      if (failed != std::errc()) return false;
      at = static_cast<size_t>(end - text.data());
      nodes_.push_back(tree_.child(nodes_.empty() ? kNoNode : nodes_.back(), scope_, id));
      ends_.push_back(at);
    }
    return true;
  }
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  NodeTree tree_;
  uint32_t scope_;
  std::string_view text_;
  std::vector<size_t> ends_;  // in text_, of each id
  std::vector<Node> nodes_;
};

/// One element of `requests`: a request, or the marker of a sub-agent.
struct Entry {
  bool has_time = false;
  bool is_subagent = false;
  bool has_ids = false;
  double t_s = 0;
  int64_t in = -1;
  int64_t out = -1;
  Stop stop = Stop::kUnknown;
  std::string_view ids;
  int32_t child = -1;  // index of the session that its own `requests` became
  std::string agent_id;
};

class LineParser {
 public:
  LineParser(JsonCursor& in, Trace& trace, int32_t number)
      : in_(in), trace_(trace), number_(number), path_(trace.parent, static_cast<uint32_t>(number)) {}

  /// Appends the sessions of the line. False: see the cursor; what was appended is then of no use.
  bool parse() {
    const size_t first = add_session(-1);
    bool has_requests = false;
    std::string_view key;
    for (in_.enter_object(); in_.next_key(key);) {
      if (key == "id")
        in_.read_text(trace_.sessions[first].name, kNameBytesMax);
      else if (key == "block_size")
        check_block_size();
      else if (key == "requests" && !std::exchange(has_requests, true))
        parse_requests(first, 0);
      else if (key == "requests")
        in_.fail("it is there twice");
      else
        in_.skip();
    }
    if (in_.is_ok() && !has_requests) in_.fail_field("requests", "it is missing");
    if (!in_.at_end()) return false;
    for (size_t i = first + 1; i < trace_.sessions.size(); ++i) {
      TraceSession& child = trace_.sessions[i];
      child.name = trace_.sessions[static_cast<size_t>(child.parent)].name + "/" + child.name;
    }
    drop_empty_sessions(trace_, first);
    return true;
  }

 private:
  size_t add_session(int32_t parent) {
    TraceSession session;
    session.number = number_;
    session.parent = parent;
    trace_.sessions.push_back(std::move(session));
    return trace_.sessions.size() - 1;
  }

  void check_block_size() {
    int64_t tokens = 0;
    in_.read_int(tokens, kBlockTokens, kBlockTokens);
  }

  /// Times of `session` count from its own start; the caller moves those of a sub-agent to its marker.
  void parse_requests(size_t session, int depth) {
    if (depth > kDepthMax) {
      in_.fail("sub-agents are nested too deep");
      return;
    }
    double last_s = 0;
    base::TimeNs at_ns = 0;
    for (in_.enter_array(); in_.next_element();) {
      const size_t first_child = trace_.sessions.size();
      Entry entry;
      if (!parse_entry(session, depth, entry)) return;
      const double gap_s = std::clamp(entry.t_s - last_s, 0.0, static_cast<double>(kGapNsMax) / static_cast<double>(base::kSecond));
      last_s = entry.t_s;
      at_ns += std::llround(gap_s * static_cast<double>(base::kSecond));
      if (at_ns > kTraceNsMax) {
        in_.fail_field("t", "the session is too long");
        return;
      }
      if (entry.is_subagent)
        start_children(first_child, at_ns);
      else if (!add_request(session, entry, at_ns))
        return;
    }
  }

  bool parse_entry(size_t session, int depth, Entry& entry) {
    std::string_view key;
    std::string_view word;
    for (in_.enter_object(); in_.next_key(key);) {
      if (key == "t")
        entry.has_time = in_.read_number(entry.t_s, 0, static_cast<double>(kTraceNsMax / base::kSecond));
      else if (key == "in")
        in_.read_int(entry.in, 0, INT32_MAX);
      else if (key == "out")
        in_.read_int(entry.out, 0, INT32_MAX);
      else if (key == "hash_ids")
        entry.has_ids = in_.read_flat_array(entry.ids);
      else if (key == "type" && in_.read_word(word))
        entry.is_subagent = word == "subagent";
      else if (key == "stop" && in_.read_word(word))
        entry.stop = stop_of(word);
      else if (key == "agent_id")
        in_.read_text(entry.agent_id, kNameBytesMax);
      else if (key == "requests")
        parse_child(session, depth, entry);
      else
        in_.skip();
    }
    if (!in_.is_ok()) return false;
    if (!entry.has_time) return in_.fail_field("t", "it is missing");
    if (entry.is_subagent != (entry.child >= 0)) return in_.fail_field("requests", "sub-agents have them, and only they");
    if (entry.is_subagent) trace_.sessions[static_cast<size_t>(entry.child)].name = entry.agent_id;
    return true;
  }

  static Stop stop_of(std::string_view word) {
    if (word.empty()) return Stop::kUnknown;
    return word == "tool_use" ? Stop::kToolUse : Stop::kEnd;
  }

  void parse_child(size_t session, int depth, Entry& entry) {
    if (entry.child >= 0) {
      in_.fail("it is there twice");
      return;
    }
    entry.child = static_cast<int32_t>(add_session(static_cast<int32_t>(session)));
    parse_requests(static_cast<size_t>(entry.child), depth + 1);
  }

  void start_children(size_t first, base::TimeNs at_ns) {
    for (size_t i = first; i < trace_.sessions.size(); ++i) {
      for (TraceRequest& request : trace_.sessions[i].requests) request.at_ns += at_ns;
    }
  }

  bool add_request(size_t session, const Entry& entry, base::TimeNs at_ns) {
    if (entry.in < 0) return in_.fail_field("in", "it is missing");
    if (entry.out < 0) return in_.fail_field("out", "it is missing");
    if (!entry.has_ids) return in_.fail_field("hash_ids", "it is missing");
    if (!path_.follow(entry.ids)) return in_.fail_field("hash_ids", "expected whole numbers");
    if (trace_.parent.size() > kNodesMax) return in_.fail_field("hash_ids", "too many blocks");
    TraceRequest request;
    request.at_ns = at_ns;
    request.prompt_tokens = static_cast<int32_t>(entry.in);
    request.reply_tokens = static_cast<int32_t>(entry.out);
    request.stop = entry.stop;
    if (!leaf_of(path_.nodes(), request.prompt_tokens, kBlockTokens, request.leaf)) {
      return in_.fail_field("hash_ids", "fewer than the full blocks of the prompt");
    }
    trace_.sessions[session].requests.push_back(request);
    return true;
  }

  JsonCursor& in_;
  Trace& trace_;
  int32_t number_;
  IdPath path_;  // sub-agents share the id space of their root
};

}  // namespace

base::Result<Trace> read_weka(const std::filesystem::path& file, const LineFilter& wanted) {
  auto lines = LineReader::open(file);
  if (!lines) return tl::make_unexpected(lines.error());
  Trace trace;
  trace.name = "weka";
  trace.block_tokens = kBlockTokens;
  std::string_view line;
  while (lines->next(line)) {
    if (lines->number() > INT32_MAX) return lines->corrupt("too many lines");
    const auto number = static_cast<int32_t>(lines->number() - 1);
    if (wanted && !wanted(number)) continue;
    JsonCursor in(line);
    if (!LineParser(in, trace, number).parse()) return lines->corrupt(in.problem());
  }
  if (!lines->status()) return tl::make_unexpected(lines->status().error());
  return trace;
}

}  // namespace kvtide::sim
