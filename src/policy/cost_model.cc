#include "policy/cost_model.h"

#include <algorithm>

namespace kvtide::policy {
namespace {

constexpr double kKeep = 0.98;              // of the old samples' weight at each new one
constexpr double kDefaultPrefillNs = 2e6;   // a token, until measured: a small model on a CPU
constexpr double kDefaultLoadNs = 1.0;      // a byte, until measured: 1 GB/s

}  // namespace

void CostModel::note_prefill(int64_t tokens, int64_t depth_tokens, base::DurationNs took_ns) {
  if (tokens <= 0 || took_ns <= 0) return;
  const double weight = static_cast<double>(tokens);
  const double x = static_cast<double>(depth_tokens) + weight / 2;
  const double y = static_cast<double>(took_ns) / weight;
  w_ = kKeep * w_ + weight;
  wx_ = kKeep * wx_ + weight * x;
  wy_ = kKeep * wy_ + weight * y;
  wxx_ = kKeep * wxx_ + weight * x * x;
  wxy_ = kKeep * wxy_ + weight * x * y;
}

void CostModel::note_load(int64_t bytes, base::DurationNs took_ns) {
  if (bytes <= 0 || took_ns <= 0) return;
  const double now = static_cast<double>(took_ns) / static_cast<double>(bytes);
  load_ns_byte_ = load_ns_byte_ == 0 ? now : 0.9 * load_ns_byte_ + 0.1 * now;
}

double CostModel::prefill_ns(int64_t tokens, int64_t depth_tokens) const {
  const double n = static_cast<double>(tokens);
  if (w_ == 0) return n * kDefaultPrefillNs;
  const double mean_x = wx_ / w_;
  const double mean_y = wy_ / w_;
  const double var = wxx_ / w_ - mean_x * mean_x;
  // Depth never makes a token cheaper: a negative slope is noise.
  const double slope = var > 1 ? std::max(0.0, (wxy_ / w_ - mean_x * mean_y) / var) : 0.0;
  const double x = static_cast<double>(depth_tokens) + n / 2;
  return n * std::max(mean_y + slope * (x - mean_x), mean_y * 0.1);
}

double CostModel::load_ns(int64_t bytes) const {
  return static_cast<double>(bytes) * (load_ns_byte_ == 0 ? kDefaultLoadNs : load_ns_byte_);
}

bool CostModel::load_is_faster(int64_t bytes, int64_t tokens, int64_t depth_tokens) const {
  if (w_ == 0 || load_ns_byte_ == 0) return true;
  return load_ns(bytes) < prefill_ns(tokens, depth_tokens);
}

}  // namespace kvtide::policy
