// A trace in one form, whatever file it came from: who asked when, for which chain of blocks.
//
// Blocks are nodes of one tree over the whole trace: equal node = equal tokens behind an equal prefix. A request names only its last full
// block, so that a trace of billions of tokens fits into memory.
//
// Threading: value types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace kvtide::sim {

using Node = uint32_t;
inline constexpr Node kNoNode = UINT32_MAX;

/// How a reply ended, as any server sees it.
enum class Stop : uint8_t { kUnknown, kEnd, kToolUse };

struct TraceRequest {
  base::TimeNs at_ns = 0;       // from the start of its root session (Trace::absolute: from the start of the trace)
  int32_t prompt_tokens = 0;
  int32_t reply_tokens = 0;
  Node leaf = kNoNode;          // last full block of the prompt; kNoNode: shorter than a block
  Stop stop = Stop::kUnknown;
  uint16_t tool = 0;            // that its reply called: index into Trace::tools; 0: none, or not recorded
};

struct TraceSession {
  std::string name;
  int32_t number = 0;           // of its root in the file, from 0: selects odd and even
  int32_t parent = -1;          // index of the session that started it; it comes before this one
  std::vector<TraceRequest> requests;  // by time; never empty
};

struct Trace {
  std::string name;
  int32_t block_tokens = 64;
  bool absolute = false;        // requests have arrival times of their own; otherwise root sessions run back to back on lanes
  std::vector<Node> parent;     // of each node; kNoNode: a first block
  std::vector<TraceSession> sessions;
  std::vector<std::string> tools{""};
};

/// Builds Trace::parent: the child of `parent` (kNoNode: a first block) that the file calls `label`, made when unknown.
class NodeTree {
 public:
  explicit NodeTree(std::vector<Node>& parent) : parent_(parent) {}
  /// `scope` keeps labels of different id spaces apart.
  Node child(Node parent, uint32_t scope, uint64_t label);

 private:
  struct Slot {
    uint64_t label = 0;
    Node parent = 0;
    uint32_t scope = 0;
    Node node = kNoNode;
  };
  void grow();

  std::vector<Node>& parent_;
  std::vector<Slot> slots_;     // open addressing, linear probing; a slot with node == kNoNode is empty
  size_t used_ = 0;
};

}  // namespace kvtide::sim
