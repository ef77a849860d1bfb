// Plays a trace through the session manager of the server, in virtual time.
//
// The manager is the same object code as in `kvtide serve`. A block of the trace is a block of the index; every request is served the moment it
// arrives, so that the order of requests is the same for every policy and for the oracle.
//
// Threading: confined to the caller.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "policy/ideas.h"
#include "sim/oracle.h"
#include "sim/schedule.h"

namespace kvtide::sim {

/// What the simulated client tells the server.
enum class Hints : uint8_t {
  kNone,    // nothing, not even who it is
  kEnd,     // who it is, and the end of each session and sub-agent when it happens
  kResume,  // also after each turn what it waits for and about how long, and a prefetch a second before the next request
  kWrong,   // what kResume tells, about other sessions, inverted, and late
};

/// A second tier behind the device, and what moving and computing take: a model of a machine, not a measurement.
struct Machine {
  int64_t host_tokens = 0;               // 0: the device alone, and no times
  double token_bytes = 28672;            // of KV: Qwen2.5-1.5B in half precision
  double copy_bytes_per_s = 10e9;        // each way between host and device
  double prefill_s_per_token = 100e-6;   // at the start of a prompt,
  double prefill_s_per_token_1k = 1e-6;  // and so much more for each thousand tokens before it

  double prefill_s(int64_t tokens, int64_t depth) const {
    const double n = static_cast<double>(tokens);
    return n * (prefill_s_per_token + prefill_s_per_token_1k * (static_cast<double>(depth) + n / 2) / 1000);
  }
};

struct DriverOptions {
  std::string policy = "affinity";
  policy::Ideas ideas;         // of affinity
  Hints hints = Hints::kNone;
  int64_t capacity_tokens = 1'000'000;  // of the device
  Machine machine;
  uint64_t seed = 1;           // of the errors in what the client expects
  bool check = false;          // recount all of the manager's state now and then; aborts on a difference
};

struct DriverResult {
  int64_t requests = 0;
  int64_t prompt_tokens = 0;
  int64_t compulsory_tokens = 0;   // seen for the first time, and ends of prompts that fill no block
  int64_t recomputed_tokens = 0;   // compulsory ones included
  int64_t host_tokens = 0;         // reused by a load from the host tier, before the request or while it waited
  int64_t copied_in_bytes = 0;
  int64_t copied_out_bytes = 0;
  double stall_s = 0;              // sum over requests of loading and computing before the first token
  int64_t block_events = 0;        // blocks of all prompts
  int64_t bypassed = 0;            // requests that did not fit at all
  int64_t hints_sent = 0;
  uint64_t trace_hash = 0;
  double bytes_per_block = 0;      // of the index at its largest
};

/// Errors: kInvalidArgument (unknown policy, capacity below one block).
base::Result<DriverResult> drive(const Trace& trace, const Schedule& schedule, const DriverOptions& options);

/// One whole-prompt copy a session, least recently used first, as a server keeps that saves slots and shares nothing.
DriverResult drive_entries(const Trace& trace, const Schedule& schedule, int64_t capacity_tokens);

/// The offline optimum (oracle.h). `future` is look_ahead() of the same trace and schedule.
DriverResult drive_belady(const Trace& trace, const Schedule& schedule, const Future& future, int64_t capacity_tokens);

}  // namespace kvtide::sim
