// Two trees over the latest moments of a sequence that never ends: how much stands at each, and how high it is piled between two of them.
//
// A moment is a number that grows by one; the trees hold the last `slots` of them in a ring. A moment that is older than that must not be
// named, and whatever stands at it must have been taken away (RingCounts) before its place is used again.
//
// Threading: confined to the loop. Cost: O(log slots) a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtide::policy {

/// Sums over moments (a Fenwick tree).
class RingCounts {
 public:
  /// REQUIRES: slots is a power of two.
  explicit RingCounts(size_t slots) : tree_(slots + 1) {}

  void add(uint64_t moment, int64_t by);
  /// The sum over (moment, now].
  int64_t after(uint64_t moment, uint64_t now) const;

 private:
  size_t slots() const { return tree_.size() - 1; }
  int64_t up_to(size_t slot) const;

  std::vector<int64_t> tree_;
  int64_t all_ = 0;
};

/// Adds to a span of moments, and the highest value in one (a segment tree whose nodes keep what was added to all below them).
class RingPeaks {
 public:
  /// REQUIRES: slots is a power of two.
  explicit RingPeaks(size_t slots) : slots_(slots), nodes_(2 * slots) {}

  void add(uint64_t begin, uint64_t end, int64_t by);
  /// REQUIRES: begin < end.
  int64_t peak(uint64_t begin, uint64_t end) const;
  /// The value at `moment` becomes zero.
  void clear(uint64_t moment) { add(moment, moment + 1, -peak(moment, moment + 1)); }

 private:
  struct Node {
    int64_t added = 0;
    int64_t peak = 0;  // of the node, with its own `added`
  };
  struct Range {
    size_t begin, end;  // slots
  };
  void add_below(size_t node, Range here, Range wanted, int64_t by);
  int64_t peak_below(size_t node, Range here, Range wanted) const;

  const size_t slots_;
  std::vector<Node> nodes_;  // 1 is the root
};

}  // namespace kvtide::policy
