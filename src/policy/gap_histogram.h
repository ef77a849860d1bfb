// How long pauses of one kind last: a decayed histogram over powers of two, and what is left of a pause that has lasted a while.
//
// Pauses of agents are heavy-tailed: most tools end within a second, a few take minutes and hold the memory. A mean says little then; the
// median of what remains, given what has passed, orders sessions well and grows by itself for those that do not come back.
//
// Threading: value type. Cost: O(buckets), 26. Bounded.
#pragma once

#include <array>
#include <cstddef>

namespace kvtide::policy {

class GapHistogram {
 public:
  static constexpr size_t kBuckets = 26;      // bucket k holds [1 ms * 2^k, 1 ms * 2^(k+1)); the first also all below, the last all above

  enum class Prior { kNone, kTool, kUser };
  /// Starts from published pauses (TraceLab, arXiv:2606.30560), worth a few samples.
  explicit GapHistogram(Prior prior = Prior::kNone);

  void note(double gap_s);
  /// Samples seen (without the prior).
  int samples() const { return samples_; }
  /// Median of the rest of a pause that has lasted `elapsed_s`. Beyond everything seen: as long again.
  double remaining_s(double elapsed_s) const;

 private:
  std::array<double, kBuckets> weight_{};
  int samples_ = 0;
};

}  // namespace kvtide::policy
