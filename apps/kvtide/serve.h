// Runs a server until a signal: wires engine, tiers, loop and HTTP.
//
// Threading: call from the main thread, before any other thread exists (signals are blocked for all).
#pragma once

#include "apps/kvtide/serve_options.h"

namespace kvtide::app {

/// Blocks until SIGINT or SIGTERM, then drains. The exit status; errors are printed as one line.
int run_serve(const ServeOptions& options);

}  // namespace kvtide::app
