#include "sim/readers/json_cursor.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

namespace kvtide::sim {
namespace {

constexpr size_t kKeyShownMax = 40;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string shown(double value) { return nlohmann::json(value).dump(); }

}  // namespace

bool JsonCursor::fail(std::string_view what) {
  if (!problem_.empty()) return false;
  if (!key_.empty()) {
    const nlohmann::json key(key_.substr(0, kKeyShownMax));
    problem_ = "field " + key.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + ": ";
  }
  problem_ += what;
  return false;
}

bool JsonCursor::fail_field(std::string_view key, std::string_view what) {
  if (!is_ok()) return false;
  key_ = key;
  return fail(what);
}

char JsonCursor::peek() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonCursor::take(char wanted) {
  if (!is_ok()) return false;
  if (peek() != wanted || at_ == text_.size()) return fail(std::string("expected '") + wanted + "' at byte " + std::to_string(at_));
  ++at_;
  return true;
}

bool JsonCursor::enter_object() { return take('{') && (is_first_ = true); }
bool JsonCursor::enter_array() { return take('[') && (is_first_ = true); }

/// Passes the comma before the next member, or the bracket at the end.
bool JsonCursor::next_in(char close) {
  if (!is_ok()) return false;
  if (peek() == close) {
    ++at_;
    is_first_ = false;
    return false;
  }
  if (!is_first_ && !take(',')) return false;
  is_first_ = false;
  return true;
}

bool JsonCursor::next_key(std::string_view& key) {
  if (!next_in('}')) return false;
  if (!scan_string(key_)) return false;
  key = key_;
  return take(':');
}

bool JsonCursor::next_element() { return next_in(']'); }

bool JsonCursor::scan_string(std::string_view& inside) {
  if (!take('"')) return false;
  const size_t begin = at_;
  for (; at_ < text_.size(); ++at_) {
    if (text_[at_] == '"') {
      inside = text_.substr(begin, at_ - begin);
      ++at_;
      is_first_ = false;
      return true;
    }
    if (text_[at_] == '\\') ++at_;
  }
  at_ = text_.size();
  return fail("a string is not closed");
}

/// A number, true, false or null, unchecked.
std::string_view JsonCursor::scan_scalar() {
  (void)peek();
  const size_t begin = at_;
  while (at_ < text_.size() && !is_space(text_[at_]) && text_[at_] != ',' && text_[at_] != ']' && text_[at_] != '}') ++at_;
  is_first_ = false;
  return text_.substr(begin, at_ - begin);
}

bool JsonCursor::read_int(int64_t& value, int64_t least, int64_t most) {
  if (!is_ok()) return false;
  const std::string_view digits = scan_scalar();
  int64_t read = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), read);
  if (failed != std::errc() || end != digits.data() + digits.size() || read < least || read > most) {
    return fail("expected a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  value = read;
  return true;
}

bool JsonCursor::read_number(double& value, double least, double most) {
  if (!is_ok()) return false;
  const std::string_view digits = scan_scalar();
  double read = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), read);
  if (failed != std::errc() || end != digits.data() + digits.size() || !std::isfinite(read) || read < least || read > most) {
    return fail("expected a number from " + shown(least) + " to " + shown(most));
  }
  value = read;
  return true;
}

bool JsonCursor::read_bool(bool& value) {
  if (!is_ok()) return false;
  const std::string_view word = scan_scalar();
  if (word != "true" && word != "false") return fail("expected true or false");
  value = word == "true";
  return true;
}

bool JsonCursor::read_word(std::string_view& value) {
  std::string_view inside;
  if (!scan_string(inside)) return false;
  if (inside.find('\\') != std::string_view::npos) return fail("expected a string without escapes");
  value = inside;
  return true;
}

bool JsonCursor::read_text(std::string& value, size_t bytes_max) {
  (void)peek();
  const size_t before = at_;
  std::string_view inside;
  if (!scan_string(inside)) return false;
  if (inside.size() > bytes_max * 6) return fail("a string over " + std::to_string(bytes_max) + " bytes");  // an escape: 6 bytes at most
  const auto decoded = nlohmann::json::parse(text_.substr(before, at_ - before), nullptr, false);
  if (!decoded.is_string()) return fail("a string that is no JSON or no UTF-8");
  const auto& text = decoded.get_ref<const std::string&>();
  if (text.size() > bytes_max) return fail("a string over " + std::to_string(bytes_max) + " bytes");
  value = text;
  return true;
}

bool JsonCursor::read_flat_array(std::string_view& inside) {
  if (!take('[')) return false;
  const size_t end = text_.find(']', at_);
  if (end == std::string_view::npos) return fail("an array is not closed");
  inside = text_.substr(at_, end - at_);
  at_ = end + 1;
  is_first_ = false;
  return true;
}

bool JsonCursor::skip() {
  size_t depth = 0;
  std::string_view unused;
  while (is_ok()) {
    const char c = peek();
    if (c == '{' || c == '[') {
      ++depth;
      ++at_;
    } else if ((c == '}' || c == ']' || c == ',' || c == ':') && depth > 0) {
      if (c == '}' || c == ']') --depth;
      ++at_;
    } else if (c == '"') {
      scan_string(unused);
    } else if (const std::string_view scalar = scan_scalar(); scalar.empty()) {
      return fail("expected a value");
    }
    if (depth == 0) break;
  }
  is_first_ = false;
  return is_ok();
}

bool JsonCursor::at_end() {
  if (!is_ok()) return false;
  key_ = {};
  if (peek() != '\0' || at_ < text_.size()) return fail("text after the end of the value");
  return true;
}

}  // namespace kvtide::sim
