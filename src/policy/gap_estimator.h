// How long a pause of one kind lasts, learned from few samples.
//
// Pauses of agents are heavy-tailed, so means of logarithms are kept, and what remains of a pause is taken to be at least as long as it
// has lasted already (which is exact for a Pareto tail).
//
// Threading: value type.
#pragma once

#include <algorithm>
#include <cmath>

namespace kvtide::policy {

class GapEstimator {
 public:
  void note(double gap_s) {
    const double x = std::log(std::max(gap_s, 1e-3));
    const double weight = samples_ < kWindow ? 1.0 / (samples_ + 1) : 1.0 / kWindow;
    log_mean_ += weight * (x - log_mean_);
    ++samples_;
  }

  int samples() const { return samples_; }
  double typical_s() const { return std::exp(log_mean_); }

  /// Expected rest of a pause that has lasted `elapsed_s`, when a pause typically lasts `typical_s`.
  static double remaining_s(double typical_s, double elapsed_s) {
    return elapsed_s < typical_s ? std::max(typical_s - elapsed_s, 0.1 * typical_s) : elapsed_s;
  }

 private:
  static constexpr int kWindow = 8;
  int samples_ = 0;
  double log_mean_ = 0;
};

}  // namespace kvtide::policy
