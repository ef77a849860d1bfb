// What it costs to have a block's bytes on the device again: measured, per token of depth and per byte loaded.
//
// Prefill is modelled as a + b * depth nanoseconds a token (attention grows with what stands before), fitted by least squares with
// exponential forgetting; loading as nanoseconds a byte.
//
// Threading: confined to the loop. O(1).
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kvtide::policy {

class CostModel {
 public:
  /// `tokens` were prefilled in `took_ns`, the first of them at position `depth_tokens`.
  void note_prefill(int64_t tokens, int64_t depth_tokens, base::DurationNs took_ns);
  /// `bytes` were brought from the host tier to the device in `took_ns`.
  void note_load(int64_t bytes, base::DurationNs took_ns);

  /// Predicted time to compute `tokens` at `depth_tokens`.
  double prefill_ns(int64_t tokens, int64_t depth_tokens) const;
  /// Predicted time to load `bytes` from the host tier.
  double load_ns(int64_t bytes) const;

  /// Whether loading is predicted to take less time. Until both were measured: yes, as it is on every machine seen so far.
  bool load_is_faster(int64_t bytes, int64_t tokens, int64_t depth_tokens) const;

 private:
  // Decayed sums for y = a + b x over samples (x = depth at the middle of the run, y = ns a token), weighted by tokens.
  double w_ = 0, wx_ = 0, wy_ = 0, wxx_ = 0, wxy_ = 0;
  double load_ns_byte_ = 0;
};

}  // namespace kvtide::policy
