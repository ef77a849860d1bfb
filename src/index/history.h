// What was once known: keys of blocks this server has held, so that a miss can be explained and compulsory work told from lost work.
//
// Threading: confined to the loop. Bounded: the oldest are forgotten. Cost O(1); 24 bytes an entry.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "index/keys.h"

namespace kvtide::index {

/// Why the last copy of a block went.
enum class Loss : uint8_t { kNone, kCapacity, kSuperseded, kHint, kFailedLoad };
std::string_view loss_name(Loss loss);

class History {
 public:
  explicit History(size_t capacity) : capacity_(capacity) {}

  /// The block exists now (kNone), or its last copy went for `loss`.
  void note(const BlockKey& key, Loss loss);
  bool seen(const BlockKey& key) const { return entries_.contains(short_key(key)); }
  Loss loss(const BlockKey& key) const;

 private:
  const size_t capacity_;
  std::unordered_map<uint64_t, Loss> entries_;
  std::vector<uint64_t> ring_;  // insertion order, for forgetting
  size_t next_ = 0;
};

}  // namespace kvtide::index
