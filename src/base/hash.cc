#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"

namespace kvtide::base {
namespace {

EVP_MD_CTX* as_context(void* p) { return static_cast<EVP_MD_CTX*>(p); }

// Fetching the algorithm once keeps a block key near the cost of the compression function; EVP_sha256() would look it up again each time.
const EVP_MD* sha256_method() {
  static const EVP_MD* const method = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return method;
}

// One context a thread: block keys are made in bursts of thousands.
EVP_MD_CTX* thread_context() {
  struct Holder {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    ~Holder() { EVP_MD_CTX_free(context); }
  };
  thread_local Holder holder;
  return holder.context;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  KV_CHECK(context_ != nullptr && EVP_DigestInit_ex2(as_context(context_), sha256_method(), nullptr) == 1);
}

Sha256::Sha256(const Sha256& other) : context_(EVP_MD_CTX_new()) {
  KV_CHECK(context_ != nullptr && EVP_MD_CTX_copy_ex(as_context(context_), as_context(other.context_)) == 1);
}

Sha256& Sha256::operator=(const Sha256& other) {
  if (this != &other) KV_CHECK(EVP_MD_CTX_copy_ex(as_context(context_), as_context(other.context_)) == 1);
  return *this;
}

Sha256::~Sha256() { EVP_MD_CTX_free(as_context(context_)); }

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  KV_CHECK(EVP_DigestUpdate(as_context(context_), bytes.data(), bytes.size()) == 1);
  return *this;
}

Digest Sha256::digest() const {
  Sha256 copy(*this);
  Digest out;
  KV_CHECK(EVP_DigestFinal_ex(as_context(copy.context_), out.data(), nullptr) == 1);
  return out;
}

Digest sha256_pair(std::span<const std::byte> head, std::span<const std::byte> tail) {
  EVP_MD_CTX* context = thread_context();
  Digest out;
  KV_CHECK(EVP_DigestInit_ex2(context, sha256_method(), nullptr) == 1);
  KV_CHECK(EVP_DigestUpdate(context, head.data(), head.size()) == 1);
  KV_CHECK(EVP_DigestUpdate(context, tail.data(), tail.size()) == 1);
  KV_CHECK(EVP_DigestFinal_ex(context, out.data(), nullptr) == 1);
  return out;
}

uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (uint8_t b : bytes) {
    out.push_back(kDigits[b >> 4]);
    out.push_back(kDigits[b & 15]);
  }
  return out;
}

bool equal_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvtide::base
