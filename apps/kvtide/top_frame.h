// One frame of `kvtide top`: pure text from the server's answers.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "apps/kvtide/http_client.h"

namespace kvtide::app {

struct TopSnapshot {
  std::string url;
  double at_s = 0;  // any steady clock
  Json tiers, stats, sessions;
};

/// A frame at most `width` columns wide with at most `session_rows` sessions. `before` gives rates; null on the first frame.
std::string top_frame(const TopSnapshot& now, const TopSnapshot* before, size_t width, size_t session_rows);

/// A header and one line a session.
std::string session_table(const Json& sessions, size_t rows);

}  // namespace kvtide::app
