// A forward-only reader of one JSON text, for files too large for a tree of values: it builds nothing, and what is not asked for is
// only skipped.
//
//   JsonCursor in(line);
//   std::string_view key;
//   for (in.enter_object(); in.next_key(key);) {
//     if (key == "in") in.read_int(tokens, 0, kTokensMax); else in.skip();
//   }
//   if (!in.at_end()) return in.problem();
//
// The first problem sticks: from then on every call returns false and changes nothing. Values that are read are checked in full;
// skipped ones only for balanced brackets and closed strings.
//
// Threading: thread-compatible.
// Cost: O(bytes) over a whole text; no recursion, so depth costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvtide::sim {

class JsonCursor {
 public:
  /// REQUIRES: `text` outlives the cursor.
  explicit JsonCursor(std::string_view text) : text_(text) {}

  bool enter_object();
  /// The next key of the object entered last, as written; false at its end, which is passed.
  bool next_key(std::string_view& key);
  bool enter_array();
  /// Whether another element follows in the array entered last; at its end, which is passed, false.
  bool next_element();

  bool read_int(int64_t& value, int64_t least, int64_t most);
  bool read_number(double& value, double least, double most);
  bool read_bool(bool& value);
  /// A string without escapes, as written; the view is of the text.
  bool read_word(std::string_view& value);
  /// A string of `bytes_max` bytes at most, decoded and checked to be UTF-8.
  bool read_text(std::string& value, size_t bytes_max);
  /// What stands between the brackets of an array without nested values, unchecked.
  bool read_flat_array(std::string_view& inside);
  bool skip();

  /// Whether all is well and nothing but white space is left.
  bool at_end();
  bool is_ok() const { return problem_.empty(); }
  /// Makes `what` the problem, with the last key in front, unless there is one. Returns false.
  bool fail(std::string_view what);
  /// The same about field `key`.
  bool fail_field(std::string_view key, std::string_view what);
  /// `field "in": expected ...`; empty: none.
  const std::string& problem() const { return problem_; }

 private:
  char peek();  // the next character that is no white space; '\0' at the end
  bool take(char wanted);
  bool next_in(char close);
  bool scan_string(std::string_view& inside);
  std::string_view scan_scalar();

  std::string_view text_;
  size_t at_ = 0;
  bool is_first_ = false;  // an object or array was just entered
  std::string_view key_;   // read last
  std::string problem_;
};

}  // namespace kvtide::sim
