#include "policy/ring_trees.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace kvtide::policy {

void RingCounts::add(uint64_t moment, int64_t by) {
  all_ += by;
  for (size_t i = moment % slots() + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += by;
}

int64_t RingCounts::up_to(size_t slot) const {
  int64_t sum = 0;
  for (size_t i = slot + 1; i > 0; i -= i & (~i + 1)) sum += tree_[i];
  return sum;
}

int64_t RingCounts::after(uint64_t moment, uint64_t now) const {
  const size_t first = moment % slots(), last = now % slots();
  const int64_t between = up_to(last) - up_to(first);
  return first <= last ? between : all_ + between;  // else the span goes round the end of the ring
}

void RingPeaks::add(uint64_t begin, uint64_t end, int64_t by) {
  KV_DCHECK(end - begin <= slots_);
  if (begin == end) return;
  const size_t first = begin % slots_, stop = (end - 1) % slots_ + 1;
  if (first < stop) return add_below(1, {0, slots_}, {first, stop}, by);
  add_below(1, {0, slots_}, {first, slots_}, by);
  add_below(1, {0, slots_}, {0, stop}, by);
}

int64_t RingPeaks::peak(uint64_t begin, uint64_t end) const {
  KV_DCHECK(begin < end && end - begin <= slots_);
  const size_t first = begin % slots_, stop = (end - 1) % slots_ + 1;
  if (first < stop) return peak_below(1, {0, slots_}, {first, stop});
  return std::max(peak_below(1, {0, slots_}, {first, slots_}), peak_below(1, {0, slots_}, {0, stop}));
}

void RingPeaks::add_below(size_t node, Range here, Range wanted, int64_t by) {
  if (wanted.begin <= here.begin && here.end <= wanted.end) {
    nodes_[node].added += by;
    nodes_[node].peak += by;
    return;
  }
  const size_t middle = (here.begin + here.end) / 2;
  if (wanted.begin < middle) add_below(2 * node, {here.begin, middle}, wanted, by);
  if (wanted.end > middle) add_below(2 * node + 1, {middle, here.end}, wanted, by);
  nodes_[node].peak = nodes_[node].added + std::max(nodes_[2 * node].peak, nodes_[2 * node + 1].peak);
}

int64_t RingPeaks::peak_below(size_t node, Range here, Range wanted) const {
  if (wanted.begin <= here.begin && here.end <= wanted.end) return nodes_[node].peak;
  const size_t middle = (here.begin + here.end) / 2;
  int64_t peak = std::numeric_limits<int64_t>::min();
  if (wanted.begin < middle) peak = peak_below(2 * node, {here.begin, middle}, wanted);
  if (wanted.end > middle) peak = std::max(peak, peak_below(2 * node + 1, {middle, here.end}, wanted));
  return nodes_[node].added + peak;
}

}  // namespace kvtide::policy
