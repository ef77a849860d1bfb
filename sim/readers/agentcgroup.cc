// The table has lengths and times but no block ids, so the blocks are inferred from lengths (docs/traces.md).

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/readers/build.h"
#include "sim/readers/csv_reader.h"
#include "sim/readers/readers.h"

namespace kvtide::sim {
namespace {

constexpr int32_t kBlockTokens = 64;
constexpr int64_t kCharactersPerToken = 4;
constexpr std::array<std::string_view, 4> kSets = {"haiku", "haiku45x18", "branchfs", "study0305"};  // times of `glm` are inflated
constexpr std::array<std::string_view, 8> kColumns = {"set",           "session",       "agent",       "t_input_ready",
                                                      "prompt_tokens", "output_tokens", "reply_chars", "tools"};
enum Column : size_t { kSet, kSession, kAgent, kInputReady, kPromptTokens, kOutputTokens, kReplyChars, kTools };

/// The blocks of an agent's last prompt.
struct AgentPath {
  int64_t first_tokens = -1;
  int64_t last_tokens = 0;
  std::vector<Node> blocks;

  /// Makes the blocks those of a prompt of `tokens`; false: no room for them. A prompt that grew extends the last one; after a
  /// compaction what stood before the first turn, system prompt and tools, is taken to be left.
  bool follow(Trace& trace, int64_t tokens) {
    int64_t shared = 0;
    if (first_tokens < 0)
      first_tokens = tokens;
    else
      shared = tokens >= last_tokens ? last_tokens : std::min(tokens, first_tokens);
    last_tokens = tokens;
    const auto count = static_cast<size_t>(tokens / kBlockTokens);
    blocks.resize(std::min(blocks.size(), static_cast<size_t>(shared / kBlockTokens)));
    if (trace.parent.size() + (count - blocks.size()) > kNodesMax) return false;
    while (blocks.size() < count) blocks.push_back(add_node(trace, blocks.empty() ? kNoNode : blocks.back()));
    return true;
  }
};

struct Agent {
  size_t session = 0;
  AgentPath path;
};

class TableParser {
 public:
  TableParser(CsvReader& rows, Trace& trace) : rows_(rows), trace_(trace), tools_(trace) {}

  void parse() {
    while (rows_.next()) {
      if (std::find(kSets.begin(), kSets.end(), rows_.field(kSet)) != kSets.end() && !parse_row()) return;
    }
  }

 private:
  bool parse_row() {
    double input_ready_s = 0;
    int64_t prompt_tokens = 0, output_tokens = 0, reply_chars = 0;
    if (!rows_.read_number(kInputReady, input_ready_s, 0, static_cast<double>(kTraceNsMax / base::kSecond)) ||
        !rows_.read_int(kPromptTokens, prompt_tokens, 0, INT32_MAX) || !rows_.read_int(kOutputTokens, output_tokens, 0, INT32_MAX) ||
        !rows_.read_int(kReplyChars, reply_chars, 0, INT32_MAX)) {
      return false;
    }
    Agent* agent = find_agent();
    if (agent == nullptr) return false;
    if (!agent->path.follow(trace_, prompt_tokens)) return rows_.fail(kPromptTokens, "too many blocks in the file");
    TraceRequest request;
    request.at_ns = std::llround(input_ready_s * static_cast<double>(base::kSecond));
    request.prompt_tokens = static_cast<int32_t>(prompt_tokens);
    // Some logs hold the count from the start of the stream: a reply has at least the tokens of its characters.
    request.reply_tokens = static_cast<int32_t>(std::max(output_tokens, reply_chars / kCharactersPerToken));
    if (!agent->path.blocks.empty()) request.leaf = agent->path.blocks.back();
    const std::string_view tools = rows_.field(kTools);
    request.stop = tools.empty() ? Stop::kEnd : Stop::kToolUse;
    if (!tools_.index_of(tools.substr(0, tools.find('+')), request.tool)) return rows_.fail(kTools, "too many tools");
    trace_.sessions[agent->session].requests.push_back(request);
    return true;
  }

  /// The agent of the row, made when unknown: the first one of a session is its root.
  Agent* find_agent() {
    std::string root_name = std::string(rows_.field(kSet)) + "/" + std::string(rows_.field(kSession));
    std::string name = root_name + "/" + std::string(rows_.field(kAgent));
    const auto [agent, is_new] = agents_.try_emplace(name);
    if (!is_new) return &agent->second;
    if (name.size() > 4 * kNameBytesMax || trace_.sessions.size() >= INT32_MAX) {
      rows_.fail(kSession, "too long, or too many of them");
      return nullptr;
    }
    const auto index = static_cast<int32_t>(trace_.sessions.size());
    const auto [root, is_root] = roots_.try_emplace(root_name, index);
    TraceSession session;
    session.name = is_root ? std::move(root_name) : std::move(name);
    session.parent = is_root ? -1 : root->second;
    session.number = is_root ? static_cast<int32_t>(roots_.size()) - 1 : trace_.sessions[static_cast<size_t>(root->second)].number;
    trace_.sessions.push_back(std::move(session));
    agent->second.session = static_cast<size_t>(index);
    return &agent->second;
  }

  CsvReader& rows_;
  Trace& trace_;
  ToolNames tools_;
  std::map<std::string, Agent> agents_;
  std::map<std::string, int32_t> roots_;
};

}  // namespace

base::Result<Trace> read_agentcgroup(const std::filesystem::path& calls_csv) {
  auto rows = CsvReader::open(calls_csv, kColumns);
  if (!rows) return tl::make_unexpected(rows.error());
  Trace trace;
  trace.name = "pauses";
  trace.block_tokens = kBlockTokens;
  TableParser(*rows, trace).parse();
  if (!rows->status()) return tl::make_unexpected(rows->status().error());
  for (TraceSession& session : trace.sessions) sort_requests(session);
  return trace;
}

}  // namespace kvtide::sim
