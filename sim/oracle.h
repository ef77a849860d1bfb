// What no online policy can beat: Bélády over blocks, and a bound for the case that deep blocks cost more.
//
// Both see a trace as requests one after another: a request reuses the leading blocks of its path that are in the cache, and while it is
// computed all of its path is there, within the capacity. A prompt longer than the capacity is computed beside the cache. The bound of costs
// does not charge for the running prompt, which only makes it lower. Proof sketches: docs/policies.md.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/schedule.h"

namespace kvtide::sim {

/// Consecutive blocks [begin, end) of one request's path, all wanted next by request `next` (index into the events).
struct Span {
  uint32_t next = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

/// Who wants which blocks next: for each event the spans of its path, by depth, without those that nobody wants again.
struct Future {
  std::vector<uint32_t> first;     // spans of event i: [first[i], first[i + 1])
  std::vector<Span> spans;
  std::vector<uint32_t> blocks;    // of each event's path
  std::vector<uint32_t> fresh;     // of these, seen for the first time: the last ones of the path
};
/// O(block touches).
Future look_ahead(const Trace& trace, const Schedule& schedule);

/// Blocks that Bélády recomputes, first uses included, with `capacity_blocks`. Evicts what is wanted last, deepest first among equals, so that
/// what stays is closed under prefixes. O(spans log requests).
int64_t belady_blocks(const Future& future, int64_t capacity_blocks);

/// A lower bound of the cost of recomputing under any policy, when a block at depth d (blocks before it) costs base + slope * d. First uses
/// included. Lagrangian dual of the interval program, by subgradient steps: every iterate is a valid bound, the best one is returned.
struct DepthCost {
  double base = 1;
  double slope = 0;
  /// Of blocks [begin, end) together.
  double of(double begin, double end) const { return base * (end - begin) + slope * (end * (end - 1) - begin * (begin - 1)) / 2; }
};
double cost_bound(const Future& future, int64_t capacity_blocks, DepthCost cost, int32_t iterations = 200);

}  // namespace kvtide::sim
