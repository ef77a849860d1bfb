// The text of one reply as it grows: whole UTF-8 characters only, and stop strings cut off.
//
// Text that might be the beginning of a stop string is held back until it is decided.
//
// Threading: confined to the loop. Cost: O(stop strings x their length) a token.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvtide::serving {

class ReplyText {
 public:
  explicit ReplyText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Adds the bytes of a token; what may be shown now. After a stop string was met, stopped() is true and nothing more comes out.
  std::string add(std::string_view bytes);
  /// What was held back, at the end of a reply without a stop string. Bytes that are no whole character become U+FFFD.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kvtide::serving
