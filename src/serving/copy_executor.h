// Does what the session manager decided: cuts, shares and copies, between the engine and the host tier.
//
// Threading: confined to the loop. Copies run at once, so a decision is done when run() returns.
#pragma once

#include "base/clock.h"
#include "engine/api/engine.h"
#include "session/sam.h"
#include "tier/api/tier.h"

namespace kvtide::serving {

struct CopyTotals {
  int64_t blocks_out = 0, bytes_out = 0;
  int64_t blocks_in = 0, bytes_in = 0;
  int64_t busy_ns = 0;
};

class CopyExecutor {
 public:
  /// `host` may be null: no host tier.
  CopyExecutor(engine::Engine& engine, tier::Tier* host, session::Sam& sam, const base::Clock& clock) : engine_(engine), host_(host), sam_(sam), clock_(clock) {}

  struct Loaded {
    int32_t blocks = 0;     // that the copy-in asked for and that arrived
    session::LoadFault fault = session::LoadFault::kNone;  // why the rest did not arrive
    int64_t took_ns = 0;
  };
  /// Runs every pending decision, in order, until none is left. The result is that of the last copy-in, if there was one.
  Loaded run();

  const CopyTotals& totals() const { return totals_; }

 private:
  void copy_out(const session::Decision& d);
  Loaded copy_in(const session::Decision& d);

  engine::Engine& engine_;
  tier::Tier* host_;
  session::Sam& sam_;
  const base::Clock& clock_;
  CopyTotals totals_;
};

}  // namespace kvtide::serving
