#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "sim/readers/build.h"
#include "sim/readers/json_cursor.h"
#include "sim/readers/readers.h"

namespace kvtide::sim {
namespace {

constexpr int32_t kBlockTokens = 512;
constexpr int64_t kTimestampMax = kTraceNsMax / base::kMillisecond;

/// Reads one line into `request`, whose blocks go to `path`. Equal ids stand for equal prefixes in the whole file.
bool parse_request(JsonCursor& in, NodeTree& tree, std::vector<Node>& path, TraceRequest& request) {
  int64_t timestamp_ms = -1;
  int64_t prompt_tokens = -1;
  int64_t reply_tokens = -1;
  int64_t id = 0;
  path.clear();
  std::string_view key;
  for (in.enter_object(); in.next_key(key);) {
    if (key == "timestamp")
      in.read_int(timestamp_ms, 0, kTimestampMax);
    else if (key == "input_length")
      in.read_int(prompt_tokens, 0, INT32_MAX);
    else if (key == "output_length")
      in.read_int(reply_tokens, 0, INT32_MAX);
    else if (key == "hash_ids") {
      for (in.enter_array(); in.next_element() && in.read_int(id, 0, INT64_MAX);) {
        path.push_back(tree.child(path.empty() ? kNoNode : path.back(), 0, static_cast<uint64_t>(id)));
      }
    } else {
      in.skip();
    }
  }
  if (!in.at_end()) return false;
  if (timestamp_ms < 0) return in.fail_field("timestamp", "it is missing");
  if (prompt_tokens < 0) return in.fail_field("input_length", "it is missing");
  if (reply_tokens < 0) return in.fail_field("output_length", "it is missing");
  request.at_ns = timestamp_ms * base::kMillisecond;
  request.prompt_tokens = static_cast<int32_t>(prompt_tokens);
  request.reply_tokens = static_cast<int32_t>(reply_tokens);
  // The last id may be of a partial block, which no cache keeps.
  if (!leaf_of(path, request.prompt_tokens, kBlockTokens, request.leaf)) {
    return in.fail_field("hash_ids", "fewer than the full blocks of the prompt");
  }
  return true;
}

}  // namespace

base::Result<Trace> read_mooncake(const std::filesystem::path& file) {
  auto lines = LineReader::open(file);
  if (!lines) return tl::make_unexpected(lines.error());
  Trace trace;
  trace.name = "chat";
  trace.block_tokens = kBlockTokens;
  trace.absolute = true;
  NodeTree tree(trace.parent);
  std::vector<Node> path;
  std::string_view line;
  while (lines->next(line)) {
    JsonCursor in(line);
    TraceRequest request;
    if (!parse_request(in, tree, path, request)) return lines->corrupt(in.problem());
    if (trace.parent.size() > kNodesMax || lines->number() > INT32_MAX) {
      return base::error(base::Code::kResourceExhausted, file.string() + ": too many requests or blocks");
    }
    TraceSession session;
    session.number = static_cast<int32_t>(trace.sessions.size());
    session.name = std::to_string(session.number);
    session.requests.push_back(request);
    trace.sessions.push_back(std::move(session));
  }
  if (!lines->status()) return tl::make_unexpected(lines->status().error());
  return trace;
}

}  // namespace kvtide::sim
