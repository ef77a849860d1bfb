#include "policy/gap_histogram.h"

#include <algorithm>
#include <cmath>

namespace kvtide::policy {
namespace {

constexpr double kFirstS = 1e-3;
constexpr double kKeep = 0.995;      // of the old weight at each sample: about the last 200 count
constexpr double kPriorWeight = 4;   // samples that the prior is worth
constexpr double kShortestS = 0.01;  // nothing is expected sooner

double edge_s(size_t bucket) { return kFirstS * std::exp2(static_cast<double>(bucket)); }

size_t bucket_of(double gap_s) {
  if (gap_s <= kFirstS) return 0;
  return std::min(GapHistogram::kBuckets - 1, static_cast<size_t>(std::log2(gap_s / kFirstS)));
}

}  // namespace

GapHistogram::GapHistogram(Prior prior) {
  struct Part {
    double share, from_s, to_s;
  };
  static constexpr Part kTool[] = {{0.61, 0.02, 1}, {0.27, 1, 10}, {0.08, 10, 60}, {0.04, 60, 1200}};
  static constexpr Part kUser[] = {{0.25, 2, 18}, {0.25, 18, 84}, {0.40, 84, 1236}, {0.10, 1236, 20000}};
  if (prior == Prior::kNone) return;
  for (const Part& part : prior == Prior::kTool ? kTool : kUser) {
    const double span = std::log2(part.to_s / part.from_s);
    for (size_t k = 0; k < kBuckets; ++k) {
      const double from = std::max(edge_s(k), part.from_s);
      const double to = std::min(edge_s(k + 1), part.to_s);
      if (to > from) weight_[k] += kPriorWeight * part.share * std::log2(to / from) / span;
    }
  }
}

void GapHistogram::note(double gap_s) {
  for (double& w : weight_) w *= kKeep;
  weight_[bucket_of(gap_s)] += 1;
  ++samples_;
}

double GapHistogram::remaining_s(double elapsed_s) const {
  const double t = std::max(elapsed_s, kFirstS);
  const size_t now = bucket_of(t);
  // What of the present bucket is still ahead, log-uniform inside it.
  const double ahead_share = now + 1 < kBuckets ? std::clamp(std::log2(edge_s(now + 1) / t), 0.0, 1.0) : 0.5;
  double total = weight_[now] * ahead_share;
  for (size_t k = now + 1; k < kBuckets; ++k) total += weight_[k];
  if (total < 1e-3) return std::max(t, kShortestS);
  double left = total / 2;
  double from = t;
  for (size_t k = now; k < kBuckets; ++k) {
    const double w = k == now ? weight_[k] * ahead_share : weight_[k];
    if (w >= left) {
      const double to = edge_s(k + 1);
      return std::max(from * std::pow(to / from, left / w) - t, kShortestS);
    }
    left -= w;
    from = edge_s(k + 1);
  }
  return std::max(t, kShortestS);
}

}  // namespace kvtide::policy
