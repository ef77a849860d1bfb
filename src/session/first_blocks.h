// First blocks of prompts, known without their salt: tells a prompt that was never seen from one that was seen under another salt.
//
// Threading: confined to the loop. Bounded: the oldest are forgotten. Cost: one hash of the block; 32 bytes an entry.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "index/keys.h"

namespace kvtide::session {

class FirstBlocks {
 public:
  /// Whether `tenant` sent these tokens last under a root other than `root`; remembers this one.
  bool seen_under_other_root(std::string_view tenant, std::span<const int32_t> tokens, const index::BlockKey& root) {
    const uint64_t words[2] = {base::checksum(std::as_bytes(std::span(tenant))), base::checksum(std::as_bytes(tokens))};
    const uint64_t key = base::checksum(std::as_bytes(std::span(words)));
    const auto [it, fresh] = roots_.try_emplace(key, index::short_key(root));
    if (!fresh) {
      const bool other = it->second != index::short_key(root);
      it->second = index::short_key(root);
      return other;
    }
    if (ring_.size() < kMax) {
      ring_.push_back(key);
      return false;
    }
    roots_.erase(ring_[next_]);
    ring_[next_] = key;
    next_ = (next_ + 1) % kMax;
    return false;
  }

 private:
  static constexpr size_t kMax = 1U << 16;

  std::unordered_map<uint64_t, uint64_t> roots_;
  std::vector<uint64_t> ring_;  // insertion order, for forgetting
  size_t next_ = 0;
};

}  // namespace kvtide::session
