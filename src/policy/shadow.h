// Live regret: what LRU with half, the same and double the memory, and an optimal cache with the same memory, would have reused of the
// very requests that the server answers. It says what more memory, or better forecasts, would buy.
//
// Blocks are sampled by their key (SHARDS: Waldspurger et al., FAST 2015): a block is looked at always or never, so that the sampled blocks
// are a small cache of their own, and each stands for `weight` blocks. The share halves whenever more than `tracked_max` are known.
//
// LRU. A prompt's blocks share the moment of the request, and of one moment the deepest are the oldest. A chain's blocks are used no less
// recently than what lies behind them, so the blocks of one prompt form runs with the same last moment, and the block at place j of a run
// lies behind all blocks of newer moments and j of its own: one sum over moments gives the stack distance of a run, for every size.
//
// Optimal. A block that is used again is a hit if the cache can hold it from one moment to the other besides those chosen before (OPTgen:
// Jain and Lin, ISCA 2016). Chosen in the order of their ends this is the largest number of hits of any cache that knows the future. A
// block's interval lies within that of any block behind it, so hits are leading blocks here too.
//
// Hits are estimated as differences: tokens really reused, which are known, plus what the rival had and we had not among the sampled
// blocks, less the opposite. What all have or nobody has, most of it, then adds no error; this takes the place of SHARDS's correction.
//
// Not responsible for: deciding anything. Nothing reads it but people.
//
// Threading: confined to the loop. No clock, no I/O. Cost: O(prompt blocks) comparisons, and O(1) for each sampled block among them, and
// O(log window) for each run. Bounded: about 80 bytes a tracked block and 48 a moment, at most 5 MB.
#pragma once

#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "index/keys.h"
#include "policy/regret.h"
#include "policy/ring_trees.h"

namespace kvtide::policy {

struct ShadowConfig {
  int64_t capacity_blocks = 0;   // of all tiers together: 1x
  int32_t block_tokens = 64;
  size_t tracked_max = 16384;    // blocks known at once
  int64_t horizon = 8;           // a block is forgotten after so many times the capacity in other blocks,
  size_t window = 65536;         // or after so many moments (two a request). A power of two
  size_t tenants_max = 64;       // with figures of their own; later ones are added up as "other"
};

/// A block of a prompt that the shadow looks at.
struct SampledBlock {
  uint64_t key;
  int32_t depth;  // blocks before it
};

class Shadow {
 public:
  explicit Shadow(const ShadowConfig& config);

  /// Those of `keys` that are looked at. `keys` are a prompt's blocks from depth `first` on. Keep the answer: it is small.
  std::vector<SampledBlock> sample(std::span<const index::BlockKey> keys, int32_t first = 0) const;

  struct Use {
    const std::string& tenant;
    std::span<const SampledBlock> path;  // of all full blocks of the prompt
    int32_t prompt_tokens;
    int32_t reused_tokens;               // really: from the start, from any tier
  };
  /// A prompt was admitted: every rival is asked what it would have reused. Once a request.
  void admitted(const Use& use, base::TimeNs now_ns);

  /// A request is over: the blocks of its prompt and its reply are as recent as now. Nothing is counted.
  void finished(std::span<const SampledBlock> path);

  RegretReport report(base::TimeNs now_ns) const;

 private:
  struct Entry {
    uint64_t key = 0;
    uint64_t moment = 0;            // last used
    int32_t newer = kNone, older = kNone;
  };
  // Totals, and what they were at the start of each of the last periods.
  struct Row {
    static constexpr size_t kPeriods = 12;
    Regret total;
    std::array<Regret, kPeriods> before{};
    int64_t period = 0;

    void turn_to(int64_t now);
    TenantRegret view(const std::string& tenant, int64_t now) const;
  };
  static constexpr int32_t kNone = -1;

  bool sampled(uint64_t key) const { return (key & static_cast<uint64_t>(weight_ - 1)) == 0; }
  size_t known() const { return by_key_.size(); }
  Row& row_of(const std::string& tenant);
  bool begin_moment(std::span<const SampledBlock> path);
  Regret judge(const Use& use);
  void touch();
  void forget(int32_t at);
  void unlink(int32_t at);
  void push_newest(int32_t at);
  void stay_bounded();
  void halve();

  const ShadowConfig config_;
  int64_t weight_ = 1;              // blocks that a sampled one stands for: a power of two
  uint64_t now_ = 0;                // moment
  RingCounts counts_;               // known blocks by last moment
  RingPeaks held_;                  // blocks that the optimal cache holds from each moment to the next
  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  std::unordered_map<uint64_t, int32_t> by_key_;
  int32_t newest_ = kNone, oldest_ = kNone;
  std::vector<SampledBlock> path_;  // of the moment that is under way
  std::vector<int32_t> found_;      // entries of its leading blocks that are known
  Row all_;
  std::map<std::string, Row> rows_;
};

}  // namespace kvtide::policy
