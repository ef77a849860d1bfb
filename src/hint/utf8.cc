#include "hint/utf8.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvtide::hint {
namespace {

struct Lead {
  size_t tail;     // bytes that follow
  uint8_t lowest;  // of the first that follows; the others are 80..BF
  uint8_t highest;
};

// Table 3-7 of the Unicode standard: only the second byte has special limits.
std::optional<Lead> lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return Lead{1, 0x80, 0xBF};
  if (byte == 0xE0) return Lead{2, 0xA0, 0xBF};
  if (byte == 0xED) return Lead{2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return Lead{2, 0x80, 0xBF};
  if (byte == 0xF0) return Lead{3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return Lead{3, 0x80, 0xBF};
  if (byte == 0xF4) return Lead{3, 0x80, 0x8F};
  return std::nullopt;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  size_t at = 0;
  const auto byte_at = [&](size_t index) { return static_cast<uint8_t>(bytes[index]); };
  while (at < bytes.size()) {
    if (byte_at(at) < 0x80) {
      ++at;
      continue;
    }
    const std::optional<Lead> lead = lead_of(byte_at(at));
    if (!lead || bytes.size() - at <= lead->tail) return false;
    if (byte_at(at + 1) < lead->lowest || byte_at(at + 1) > lead->highest) return false;
    for (size_t i = 2; i <= lead->tail; ++i) {
      if ((byte_at(at + i) & 0xC0) != 0x80) return false;
    }
    at += 1 + lead->tail;
  }
  return true;
}

}  // namespace kvtide::hint
