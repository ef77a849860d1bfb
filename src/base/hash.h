// SHA-256 for identity (a security boundary), XXH3 for checksums (not one).
//
// Threading: Sha256 is thread-compatible; free functions are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvtide::base {

using Digest = std::array<uint8_t, 32>;

/// Incremental SHA-256. Copying an object forks the stream, so prefixes of one text cost one pass.
class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256& other);
  Sha256& operator=(const Sha256& other);
  ~Sha256();

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text) { return update(std::as_bytes(std::span(text))); }
  /// The digest of everything so far. The stream may go on afterwards.
  Digest digest() const;

 private:
  void* context_;  // EVP_MD_CTX: kept out of this header
};

/// One SHA-256 over `head` followed by `tail`, without an allocation. The block-key chain is built of these.
Digest sha256_pair(std::span<const std::byte> head, std::span<const std::byte> tail);

/// XXH3-64 of `bytes`.
uint64_t checksum(std::span<const std::byte> bytes);

/// Lower-case hex.
std::string hex(std::span<const uint8_t> bytes);

/// Whether two strings are equal, in time that depends on their lengths only. For API keys.
bool equal_constant_time(std::string_view a, std::string_view b);

}  // namespace kvtide::base
