#include "policy/rfc52113.h"

#include <algorithm>

#include "policy/ttl_wheel.h"

namespace kvtide::policy {
namespace {

class Rfc52113 final : public EvictionPolicy {
 public:
  explicit Rfc52113(PolicyView view) : view_(view) {}
  std::string_view name() const override { return "rfc52113"; }
  bool drifts() const override { return false; }

  double rank(BlockId id, Tier, base::TimeNs now_ns) const override {
    const int claimed = view_.blocks.claimed(id) ? 1 : 0;
    const int row = protected_until_ns(id, now_ns) > now_ns ? 2 : claimed;
    const base::TimeNs used_us = std::clamp<base::TimeNs>(view_.blocks.at(id).last_used_ns / base::kMicrosecond, 0, kRowUs - 1);
    return -static_cast<double>(row * kRowUs + used_us);
  }

  base::TimeNs rises_at_ns(BlockId id, Tier, base::TimeNs now_ns) const override {
    const base::TimeNs until_ns = protected_until_ns(id, now_ns);
    return until_ns > now_ns ? until_ns : kNeverNs;
  }

 private:
  // Microseconds that a class spans in the rank: 71 years. Three of them are whole numbers in a double.
  static constexpr base::TimeNs kRowUs = base::TimeNs{1} << 51;

  // The latest deadline of the block's claims, in the ticks of the wheel that watches it, so that both see it pass at the same instant.
  base::TimeNs protected_until_ns(BlockId id, base::TimeNs now_ns) const {
    base::TimeNs until_ns = 0;
    view_.blocks.for_each_claim(
        id, [&](BranchId branch) { until_ns = std::max(until_ns, view_.forecasts.forecast(branch, now_ns).protected_until_ns); });
    return TtlWheel::round_up(until_ns);
  }

  PolicyView view_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_rfc52113(PolicyView view) { return std::make_unique<Rfc52113>(view); }

}  // namespace kvtide::policy
