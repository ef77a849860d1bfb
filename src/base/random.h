// Seeded randomness that gives the same numbers on every platform (SplitMix64; Steele, Lea, Flood, OOPSLA 2014).
//
// Threading: thread-compatible.
#pragma once

#include <cstdint>

namespace kvtide::base {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  /// Uniform in [0, bound). REQUIRES: bound > 0. The bias (below 2^-32 for bounds under 2^32) does not matter here.
  uint64_t below(uint64_t bound) { return next() % bound; }

  /// Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace kvtide::base
