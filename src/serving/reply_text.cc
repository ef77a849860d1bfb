#include "serving/reply_text.h"

#include <algorithm>
#include <utility>

namespace kvtide::serving {
namespace {

// Length of the longest end of `text` that is the beginning of `stop`.
size_t open_stop(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

// Bytes at the end of `text` that begin a UTF-8 character which is not complete yet.
size_t open_character(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) continue;  // a continuation byte
    const size_t needs = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    return needs > back ? back : 0;
  }
  return 0;
}

// Length of the UTF-8 character that `text` begins with; 0 when it begins with none.
size_t character(std::string_view text) {
  auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = at(0);
  if (lead < 0x80U) return 1;
  const size_t length = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : 2;
  if (lead < 0xC2U || lead > 0xF4U) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0U) != 0x80U) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  const unsigned second = at(1);
  if ((lead == 0xE0U && second < 0xA0U) || (lead == 0xEDU && second > 0x9FU)) return 0;
  if ((lead == 0xF0U && second < 0x90U) || (lead == 0xF4U && second > 0x8FU)) return 0;
  return length;
}

// `text` with each byte that is part of no character replaced by U+FFFD.
std::string whole_characters(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = character(text);
    out += length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

}  // namespace

std::string ReplyText::add(std::string_view bytes) {
  if (stopped_) return "";
  held_.append(bytes);
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) cut = std::min(cut, held_.find(stop));
  }
  if (cut != std::string::npos) {
    stopped_ = true;
    held_.resize(cut);
    return whole_characters(std::exchange(held_, {}));
  }
  size_t keep = open_character(held_);
  for (const std::string& stop : stops_) {
    if (!stop.empty()) keep = std::max(keep, open_stop(held_, stop));
  }
  std::string out = whole_characters(std::string_view(held_).substr(0, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string ReplyText::flush() {
  std::string out = std::exchange(held_, {});
  const size_t open = open_character(out);
  if (open > 0) {
    out.resize(out.size() - open);
    return whole_characters(out) + "\xEF\xBF\xBD";
  }
  return whole_characters(out);
}

}  // namespace kvtide::serving
