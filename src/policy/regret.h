// What the cache hit beside what others would have: the figures of the shadow (policy/shadow.h).
//
// Threading: value types.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtide::policy {

/// Whom the cache is compared with.
enum class Rival : uint8_t { kLruHalf, kLru, kLruDouble, kOptimal };
inline constexpr std::array kRivals{Rival::kLruHalf, Rival::kLru, Rival::kLruDouble, Rival::kOptimal};
/// "lru_half", "lru", "lru_double", "optimal".
std::string_view rival_name(Rival rival);

/// Prompt tokens. `prompt` and `reused` are exact, the others estimates from a sample.
struct Regret {
  int64_t prompt = 0;
  int64_t reused = 0;
  int64_t compulsory = 0;                   // in no block that was seen lately: nobody could have reused them
  std::array<int64_t, kRivals.size()> lost{};  // the rival would have reused them, the cache did not
  std::array<int64_t, kRivals.size()> won{};   // the cache reused them, the rival would not have

  int64_t lost_to(Rival rival) const { return lost[static_cast<size_t>(rival)]; }
  int64_t won_over(Rival rival) const { return won[static_cast<size_t>(rival)]; }
  /// What the rival would have reused.
  int64_t hits(Rival rival) const { return reused + lost_to(rival) - won_over(rival); }

  Regret& operator+=(const Regret& other);
  Regret& operator-=(const Regret& other);
  friend bool operator==(const Regret&, const Regret&) = default;
};

struct TenantRegret {
  std::string tenant;  // empty: all together
  Regret total;        // since the start; never falls
  Regret last_hour;    // 55 to 60 minutes
};

struct RegretReport {
  double rate = 1;              // share of the blocks that is looked at
  int64_t capacity_blocks = 0;  // of the memory that 1x stands for; 0: nothing is measured
  int64_t tracked_blocks = 0;
  TenantRegret all;
  std::vector<TenantRegret> tenants;  // by name
};

}  // namespace kvtide::policy
