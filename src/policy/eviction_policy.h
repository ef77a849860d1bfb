// Eviction order of copies.
//
// A policy ranks copies; it never frees anything. The session manager asks for victims, checks leases, and drops them. Policies
// therefore cannot violate safety, only performance.
//
// Threading: confined to the loop. Never blocks. Cost: rank() O(claimants of the block).
#pragma once

#include <limits>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "index/block_index.h"
#include "policy/cost_model.h"
#include "policy/ideas.h"

namespace kvtide::policy {

using base::BlockId;
using base::BranchId;
using index::Tier;

/// How soon a branch will want its blocks again, as far as anyone can tell.
struct Forecast {
  double rate_per_s = 0;  // uses expected per second that memory is held for it, > 0
  double boost = 1;    // bounded protection asked for by the client, >= 1
  base::TimeNs protected_until_ns = 0;  // a client asked to retain it until then; 0: nobody did
};

/// What the session manager tells a policy about claimants.
class Forecasts {
 public:
  virtual ~Forecasts() = default;
  virtual Forecast forecast(BranchId branch, base::TimeNs now_ns) const = 0;
};

/// What a policy may look at.
struct PolicyView {
  const index::BlockIndex& blocks;
  const Forecasts& forecasts;
  const CostModel& costs;
  int32_t block_tokens;
  int64_t block_bytes;
  bool host_tier;      // a block that leaves the device can go to the host
  Ideas ideas = {};    // that affinity uses
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual std::string_view name() const = 0;

  /// How willingly the copy in `tier` is given up: larger goes first. Comparable between blocks of one tier at one time.
  virtual double rank(BlockId block, Tier tier, base::TimeNs now_ns) const = 0;

  /// Whether ranks move by themselves as time passes.
  virtual bool drifts() const = 0;

  /// When the rank of `block` next rises by itself, at one known instant after `now_ns`; kNeverNs: it does not, or it drifts.
  virtual base::TimeNs rises_at_ns(BlockId /*block*/, Tier /*tier*/, base::TimeNs /*now_ns*/) const { return kNeverNs; }
  static constexpr base::TimeNs kNeverNs = std::numeric_limits<base::TimeNs>::max();
};

/// `name`: "lru", "affinity" or "rfc52113". Errors: kInvalidArgument, naming the known ones. The view's referents must outlive the policy.
base::Result<std::unique_ptr<EvictionPolicy>> make_policy(std::string_view name, PolicyView view);

}  // namespace kvtide::policy
