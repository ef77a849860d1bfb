// Block keys: SHA-256 chained over (parent key, token ids). Equal key = equal bytes.
//
// The root is seeded with everything that must match for bytes to be interchangeable: tenant, salt, model fingerprint, block size. A
// block of another tenant, salt or model can therefore never be found, let alone matched.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace kvtide::index {

using BlockKey = base::Digest;

struct KeyScope {
  std::string_view tenant;
  std::string_view salt;             // empty: none
  const base::Digest& fingerprint;   // of model weights, KV geometry and KV dtype
  int32_t block_tokens;
};

/// 64 bits of a key, for explanations and samples: a collision blurs those. Bytes are always found by whole keys.
uint64_t short_key(const BlockKey& key);

BlockKey root_key(const KeyScope& scope);

/// The key of the block that holds `tokens` after the chain of `parent`.
BlockKey child_key(const BlockKey& parent, std::span<const int32_t> tokens);

/// Keys of the full blocks of `tokens`, in order. Cost: one SHA-256 compression run over the tokens (about 0.2 ms for 60 k tokens).
std::vector<BlockKey> chain_keys(const BlockKey& root, std::span<const int32_t> tokens, int32_t block_tokens);

}  // namespace kvtide::index
