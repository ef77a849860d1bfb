// The replay report as one HTML page with inline SVG plots: nothing is loaded from elsewhere.
//
// Threading: pure.
#pragma once

#include <string>

#include "apps/kvtide/replay_figures.h"

namespace kvtide::app {

std::string to_html(const ReplayReport& report);

}  // namespace kvtide::app
