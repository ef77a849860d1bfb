// The policies, by name.
#include <algorithm>
#include <cmath>
#include <string>

#include "policy/eviction_policy.h"
#include "policy/rfc52113.h"

namespace kvtide::policy {
namespace {

// Block LRU, tail first (only leaves are ever asked about). The honest baseline: what a good engine does without knowing sessions.
class Lru final : public EvictionPolicy {
 public:
  explicit Lru(PolicyView view) : view_(view) {}
  std::string_view name() const override { return "lru"; }
  bool drifts() const override { return false; }

  double rank(BlockId id, Tier, base::TimeNs) const override { return -static_cast<double>(view_.blocks.at(id).last_used_ns); }

 private:
  PolicyView view_;
};

// Value of a copy = how often it is expected to be wanted x what it then costs to have it back, per block. The least valuable goes first.
//
// "How often" is the sum over claimants of 1 / expected wait. A block without a claimant (superseded, or its session ended) is wanted
// only by chance: it gets a small rate that grows with how often it was reused and fades with its age.
class Affinity final : public EvictionPolicy {
 public:
  explicit Affinity(PolicyView view) : view_(view) {}
  std::string_view name() const override { return "affinity"; }
  bool drifts() const override { return true; }

  double rank(BlockId id, Tier tier, base::TimeNs now_ns) const override {
    const index::Block& block = view_.blocks.at(id);
    return -wanted_per_s(id, block, now_ns) * cost_ns(block, tier);
  }

 private:
  static constexpr double kUnclaimedShare = 1e-4;  // of the rate that a claimant as old as the block would give

  double wanted_per_s(BlockId id, const index::Block& block, base::TimeNs now_ns) const {
    double rate = 0;
    view_.blocks.for_each_claim(id, [&](BranchId branch) {
      const Forecast f = view_.forecasts.forecast(branch, now_ns);
      rate += f.boost * f.rate_per_s;
    });
    const double age_s = std::max(1e-3, static_cast<double>(now_ns - block.last_used_ns) * 1e-9);
    return rate + (view_.ideas.has(Idea::kSuperseded) ? kUnclaimedShare : 1) * (1.0 + static_cast<double>(std::min(block.uses, 64U))) / (1.0 + age_s);
  }

  // On the device with a host tier behind it, losing a copy costs a load whatever the depth: the block is written back as it leaves.
  double cost_ns(const index::Block& block, Tier tier) const {
    if (tier == Tier::kDevice && view_.host_tier) return view_.costs.load_ns(view_.block_bytes);
    return view_.costs.prefill_ns(view_.block_tokens, static_cast<int64_t>(block.depth) * view_.block_tokens);
  }

  PolicyView view_;
};

}  // namespace

base::Result<std::unique_ptr<EvictionPolicy>> make_policy(std::string_view name, PolicyView view) {
  if (name == "lru") return std::make_unique<Lru>(view);
  if (name == "affinity") return std::make_unique<Affinity>(view);
  if (name == "rfc52113") return make_rfc52113(view);
  return base::error(base::Code::kInvalidArgument, "policy '" + std::string(name) + "' is unknown; known: lru, affinity, rfc52113");
}

}  // namespace kvtide::policy
