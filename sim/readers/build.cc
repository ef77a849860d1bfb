#include "sim/readers/build.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "sim/readers/readers.h"

namespace kvtide::sim {

bool leaf_of(std::span<const Node> path, int32_t prompt_tokens, int32_t block_tokens, Node& leaf) {
  const auto blocks = static_cast<size_t>(prompt_tokens / block_tokens);
  if (path.size() < blocks) return false;
  leaf = blocks == 0 ? kNoNode : path[blocks - 1];
  return true;
}

Node add_node(Trace& trace, Node parent) {
  KV_CHECK(trace.parent.size() < kNodesMax);
  trace.parent.push_back(parent);
  return static_cast<Node>(trace.parent.size() - 1);
}

void drop_empty_sessions(Trace& trace, size_t first) {
  std::vector<int32_t> moved(trace.sessions.size() - first);  // where each went; an empty one: where its parent went
  size_t next = first;
  for (size_t i = first; i < trace.sessions.size(); ++i) {
    TraceSession& session = trace.sessions[i];
    if (session.parent >= static_cast<int64_t>(first)) session.parent = moved[static_cast<size_t>(session.parent) - first];
    if (session.requests.empty()) {
      moved[i - first] = session.parent;
      continue;
    }
    moved[i - first] = static_cast<int32_t>(next);
    if (next != i) trace.sessions[next] = std::move(session);
    ++next;
  }
  trace.sessions.resize(next);
}

void sort_requests(TraceSession& session) {
  std::vector<TraceRequest>& requests = session.requests;
  const auto earlier = [](const TraceRequest& a, const TraceRequest& b) { return a.at_ns < b.at_ns; };
  if (std::is_sorted(requests.begin(), requests.end(), earlier)) return;
  std::vector<std::pair<base::TimeNs, size_t>> order;
  for (size_t i = 0; i < requests.size(); ++i) order.emplace_back(requests[i].at_ns, i);
  std::sort(order.begin(), order.end());
  std::vector<TraceRequest> sorted;
  for (const auto& [at_ns, i] : order) sorted.push_back(requests[i]);
  requests = std::move(sorted);
}

bool ToolNames::index_of(std::string_view name, uint16_t& index) {
  index = 0;
  if (name.empty()) return true;
  const auto [found, is_new] = known_.try_emplace(std::string(name), static_cast<uint16_t>(trace_.tools.size()));
  if (is_new && trace_.tools.size() > UINT16_MAX) {
    known_.erase(found);
    return false;
  }
  if (is_new) trace_.tools.emplace_back(name);
  index = found->second;
  return true;
}

}  // namespace kvtide::sim
