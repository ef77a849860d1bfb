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
    return std::exchange(held_, {});
  }
  size_t keep = open_character(held_);
  for (const std::string& stop : stops_) {
    if (!stop.empty()) keep = std::max(keep, open_stop(held_, stop));
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string ReplyText::flush() {
  std::string out = std::exchange(held_, {});
  const size_t open = open_character(out);
  if (open > 0) {
    out.resize(out.size() - open);
    out += "\xEF\xBF\xBD";
  }
  return out;
}

}  // namespace kvtide::serving
