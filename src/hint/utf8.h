// Whether bytes from outside are UTF-8.
//
// Threading: thread-safe.
#pragma once

#include <string_view>

namespace kvtide::hint {

/// Well-formed UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF. O(size).
bool is_utf8(std::string_view bytes);

}  // namespace kvtide::hint
