#include "index/keys.h"

#include <cstring>

#include "base/check.h"

namespace kvtide::index {

uint64_t short_key(const BlockKey& key) {
  uint64_t head;
  std::memcpy(&head, key.data(), sizeof(head));
  return head;
}
namespace {

// Length first, so that no two different scopes give the same byte stream.
void add_field(base::Sha256& hash, std::string_view field) {
  const uint64_t length = field.size();
  hash.update(std::as_bytes(std::span(&length, 1)));
  hash.update(field);
}

}  // namespace

BlockKey root_key(const KeyScope& scope) {
  KV_CHECK(scope.block_tokens > 0);
  base::Sha256 hash;
  add_field(hash, "kvtide block chain v1");
  add_field(hash, scope.tenant);
  add_field(hash, scope.salt);
  hash.update(std::as_bytes(std::span(scope.fingerprint)));
  hash.update(std::as_bytes(std::span(&scope.block_tokens, 1)));
  return hash.digest();
}

BlockKey child_key(const BlockKey& parent, std::span<const int32_t> tokens) {
  return base::sha256_pair(std::as_bytes(std::span(parent)), std::as_bytes(tokens));
}

std::vector<BlockKey> chain_keys(const BlockKey& root, std::span<const int32_t> tokens, int32_t block_tokens) {
  const auto block = static_cast<size_t>(block_tokens);
  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / block);
  BlockKey parent = root;
  for (size_t begin = 0; begin + block <= tokens.size(); begin += block) {
    parent = child_key(parent, tokens.subspan(begin, block));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace kvtide::index
