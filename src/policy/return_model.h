// How likely a pause is to end soon, given how long it has lasted: learned per class, with honest uncertainty.
//
// Each class counts, per interval of elapsed time, how many pauses got that far and how many ended there. That is the Kaplan-Meier estimator
// (1958), kept as a stream: a pause that still lasts, or whose session was closed, counts for the time that it was seen and no more. So sessions
// that never come back are learned too. A class with few samples leans on its parent class (shrinkage); the roots lean on published pauses.
//
// What memory is worth while one waits is the best ratio of "chance that the pause ends within T" to "time the memory is held until then",
// over all T: the index of Gittins (1979) for a bandit of one arm. It falls while a usual pause drags on, and rises towards a usual length.
//
// Threading: confined to the loop. Bounded: classes_max classes of about 1 KiB. Cost: note O(kBuckets x ancestors); value O(1) amortised.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/ideas.h"

namespace kvtide::policy {

class ReturnModel {
 public:
  using ClassId = uint32_t;
  static constexpr size_t kBuckets = 44;  // bucket k: [first * 2^(k/2), first * 2^((k+1)/2))
  static constexpr ClassId kTool = 0;     // roots: waiting for a tool,
  static constexpr ClassId kUser = 1;     // for a person,
  static constexpr ClassId kAnnounced = 2;  // and pauses announced by a client, in units of the announced length

  explicit ReturnModel(Ideas ideas = {}, size_t classes_max = 8192);

  /// The class `name` below `parent`, made when unknown; `parent` itself when there are too many.
  ClassId child(ClassId parent, std::string_view name);

  /// A pause of class `id` ended after `length`. Of its time, buckets before `counted` were told by survived().
  void ended(ClassId id, double length, size_t counted);
  /// A pause of class `id` still lasts, or was cut short by something else: it got as far as `length`. Returns the new value of `counted`.
  size_t survived(ClassId id, double length, size_t counted);

  /// Expected ends of the pause per unit of time that memory is held for it, at best; > 0.
  double value(ClassId id, double elapsed) const;
  /// Natural logarithm of the probability that the pause ends in the bucket of `length`.
  double log_likelihood(ClassId id, double length) const;
  /// And of the probability that the pause gets past the bucket before `length`.
  double log_survival(ClassId id, double length) const;
  /// Median of the whole pause; the upper end of the scale when most never end.
  double median(ClassId id) const;

  int64_t samples(ClassId id) const { return classes_[id].samples; }
  size_t classes() const { return classes_.size(); }

  static size_t bucket_of(double length);

 private:
  struct Class {
    ClassId parent = 0;             // itself: a root
    std::array<float, kBuckets> reached{};
    std::array<float, kBuckets> ended{};
    int64_t samples = 0;
    // Values at the lower edge of each bucket, made anew when enough was learned since.
    mutable std::array<float, kBuckets + 1> values{};
    mutable std::array<float, kBuckets> hazards{};
    mutable double learned = 0;     // weight since the table was made
    mutable double at_table = -1;
    double weight = 0;
  };
  void count(ClassId id, size_t from, size_t to, bool ended);
  void refresh(ClassId id) const;

  const Ideas ideas_;
  const size_t classes_max_;
  std::vector<Class> classes_;
  std::unordered_map<std::string, ClassId> by_name_;  // parent id, NUL, name
};

}  // namespace kvtide::policy
