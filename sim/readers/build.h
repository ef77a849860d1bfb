// What the readers share when they fill a Trace.
//
// Threading: as the trace that is filled: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "sim/trace.h"

namespace kvtide::sim {

/// The last of the full blocks of a prompt whose blocks are `path`. False: the path is too short for it.
bool leaf_of(std::span<const Node> path, int32_t prompt_tokens, int32_t block_tokens, Node& leaf);

/// A node that nothing shares. REQUIRES: room (kNodesMax).
Node add_node(Trace& trace, Node parent);

/// Removes sessions without requests from `first` on; their sub-agents go to the next session above, or become roots.
void drop_empty_sessions(Trace& trace, size_t first);

/// Stable; by time.
void sort_requests(TraceSession& session);

/// Trace::tools, by name.
class ToolNames {
 public:
  explicit ToolNames(Trace& trace) : trace_(trace) {}
  /// The index of `name`, made when unknown; 0 for an empty one. False: no index is left.
  bool index_of(std::string_view name, uint16_t& index);

 private:
  Trace& trace_;
  std::unordered_map<std::string, uint16_t> known_;
};

}  // namespace kvtide::sim
