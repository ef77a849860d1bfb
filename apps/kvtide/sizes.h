// Sizes as people write them: 512M, 4G, 1.5GiB, 4096.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvtide::app {

/// Bytes of `text`: a number and one of K, M, G, T (powers of 1024; "KB" and "KiB" mean the same), or none for bytes.
/// Errors: kInvalidArgument saying what a good size looks like.
base::Result<int64_t> parse_bytes(std::string_view text);

/// "512.0 MiB", "23 B".
std::string format_bytes(int64_t bytes);

}  // namespace kvtide::app
