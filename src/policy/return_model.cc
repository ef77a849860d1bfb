#include "policy/return_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvtide::policy {
namespace {

constexpr double kFirst = 0.01;        // lower edge of bucket 1; bucket 0 also holds everything below
constexpr double kPriorWeight = 2;     // samples of its own at which a class is trusted as much as its parent
constexpr double kWeightMax = 20000;   // of one bucket: counts are halved then, so that old pauses fade
constexpr double kHazardMin = 1e-4;

double edge(size_t bucket) { return bucket == 0 ? 0 : kFirst * std::exp2(static_cast<double>(bucket) / 2); }

// Hazards of the roots before anything was learned: log-uniform pieces of published pauses (TraceLab, arXiv:2606.30560; WEKA), and the share
// that never ends.
struct Piece {
  double share, from, to;
};
constexpr Piece kToolPieces[] = {{0.60, 0.02, 1}, {0.26, 1, 10}, {0.08, 10, 60}, {0.04, 60, 1200}};
constexpr Piece kUserPieces[] = {{0.20, 2, 18}, {0.22, 18, 84}, {0.33, 84, 1236}, {0.10, 1236, 20000}};
constexpr Piece kAnnouncedPieces[] = {{0.10, 0.05, 0.5}, {0.70, 0.5, 2}, {0.15, 2, 20}};

template <size_t N>
void set_prior(const Piece (&pieces)[N], std::array<float, ReturnModel::kBuckets>& hazards) {
  double alive = 1;
  for (size_t k = 0; k < hazards.size(); ++k) {
    double mass = 0;
    for (const Piece& piece : pieces) {
      const double from = std::max(std::max(edge(k), kFirst / 2), piece.from);
      const double to = std::min(edge(k + 1), piece.to);
      if (to > from) mass += piece.share * std::log(to / from) / std::log(piece.to / piece.from);
    }
    hazards[k] = static_cast<float>(std::clamp(mass / alive, kHazardMin, 0.9));
    alive *= 1 - hazards[k];
  }
}

}  // namespace

size_t ReturnModel::bucket_of(double length) {
  if (length <= kFirst * std::exp2(0.5)) return 0;
  return std::min(kBuckets - 1, static_cast<size_t>(2 * std::log2(length / kFirst)));
}

ReturnModel::ReturnModel(Ideas ideas, size_t classes_max) : ideas_(ideas), classes_max_(std::max<size_t>(classes_max, 3)), classes_(3) {
  for (ClassId id = 0; id < 3; ++id) classes_[id].parent = id;
}

ReturnModel::ClassId ReturnModel::child(ClassId parent, std::string_view name) {
  std::string key = std::to_string(parent);
  key.push_back('\0');
  key.append(name);
  if (const auto it = by_name_.find(key); it != by_name_.end()) return it->second;
  if (classes_.size() >= classes_max_) return parent;
  const auto id = static_cast<ClassId>(classes_.size());
  classes_.emplace_back();
  classes_.back().parent = parent;
  by_name_.emplace(std::move(key), id);
  return id;
}

void ReturnModel::count(ClassId id, size_t from, size_t to, bool ended) {
  if (!ideas_.has(Idea::kLearning)) return;
  while (true) {
    Class& c = classes_[id];
    for (size_t k = from; k <= to && k < kBuckets; ++k) c.reached[k] += 1;
    if (ended) c.ended[to] += 1;
    const double added = 1;
    c.weight += added;
    c.learned += added;
    if (ended) ++c.samples;
    if (c.reached[from] > kWeightMax) {
      for (float& n : c.reached) n /= 2;
      for (float& n : c.ended) n /= 2;
      c.weight /= 2;
    }
    if (c.parent == id) return;
    id = c.parent;
  }
}

void ReturnModel::ended(ClassId id, double length, size_t counted) {
  const size_t bucket = bucket_of(length);
  count(id, std::min(counted, bucket), bucket, true);
}

size_t ReturnModel::survived(ClassId id, double length, size_t counted) {
  const size_t bucket = bucket_of(length);
  if (counted >= bucket) return counted;
  count(id, counted, bucket - 1, false);
  return bucket;
}

// Tables are made when a tenth more was learned: values then lag by little, and a look-up costs nothing.
void ReturnModel::refresh(ClassId id) const {
  const Class& c = classes_[id];
  if (c.at_table >= 0 && c.learned <= 0.1 * c.at_table + 2) return;
  if (c.parent == id) {
    std::array<float, kBuckets> prior;
    if (id == kTool) set_prior(kToolPieces, prior);
    if (id == kUser) set_prior(kUserPieces, prior);
    if (id == kAnnounced) set_prior(kAnnouncedPieces, prior);
    c.hazards = prior;
  } else {
    refresh(c.parent);
    c.hazards = classes_[c.parent].hazards;
  }
  for (size_t k = 0; k < kBuckets; ++k) {
    const double n = c.reached[k];
    c.hazards[k] = static_cast<float>(std::clamp((c.ended[k] + kPriorWeight * c.hazards[k]) / (n + kPriorWeight), kHazardMin, 0.999));
  }
  for (size_t j = 0; j < kBuckets; ++j) {
    double alive = 1, chance = 0, held = 0, best = 0;
    for (size_t k = j; k < kBuckets; ++k) {
      const double from = std::max(edge(k), j == 0 ? 0 : edge(j));
      const double to = edge(k + 1);
      const double h = c.hazards[k];
      held += alive * (h * (to - from) / 2 + (1 - h) * (to - from));
      chance += alive * h;
      alive *= 1 - h;
      best = ideas_.has(Idea::kGittins) ? std::max(best, chance / held) : chance / held;
    }
    c.values[j] = static_cast<float>(best);
  }
  c.values[kBuckets] = c.values[kBuckets - 1] / 2;
  c.at_table = c.weight;
  c.learned = 0;
}

double ReturnModel::value(ClassId id, double elapsed) const {
  refresh(id);
  const Class& c = classes_[id];
  const size_t k = bucket_of(elapsed);
  if (k == 0) return c.values[0];
  const double last = edge(kBuckets);
  if (elapsed >= last) return c.values[kBuckets] * last / elapsed;
  const double share = std::clamp(2 * std::log2(elapsed / edge(k)), 0.0, 1.0);
  return std::pow(c.values[k], 1 - share) * std::pow(c.values[k + 1], share);
}

double ReturnModel::log_survival(ClassId id, double length) const {
  refresh(id);
  double sum = 0;
  for (size_t k = 0; k < bucket_of(length); ++k) sum += std::log1p(-classes_[id].hazards[k]);
  return sum;
}

double ReturnModel::log_likelihood(ClassId id, double length) const {
  return log_survival(id, length) + std::log(classes_[id].hazards[bucket_of(length)]);
}

double ReturnModel::median(ClassId id) const {
  refresh(id);
  double alive = 1;
  for (size_t k = 0; k < kBuckets; ++k) {
    alive *= 1 - classes_[id].hazards[k];
    if (alive <= 0.5) return edge(k + 1);
  }
  return edge(kBuckets);
}

}  // namespace kvtide::policy
