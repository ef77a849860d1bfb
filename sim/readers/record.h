// Writes our own trace format (docs/traces.md): hashes, counts and times, never text.
//
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "sim/trace.h"

namespace kvtide::sim {

/// One request as a line. Session names should be hashes where a trace leaves the machine.
struct RecordedRequest {
  base::TimeNs at_ns = 0;    // written in whole microseconds
  std::string_view session;  // not empty
  std::string_view parent;   // empty: none
  int32_t prompt_tokens = 0;
  int32_t reply_tokens = 0;
  Stop stop = Stop::kUnknown;
  std::string_view tool;             // empty: none, or not known
  uint32_t keep = 0;                 // so many blocks are the first of the session's line before
  std::span<const uint64_t> blocks;  // those that follow; with `keep` they are all full blocks of the prompt
};

/// The name of a block in a trace: the first eight bytes of its key. REQUIRES: eight bytes or more.
uint64_t block_label(std::span<const uint8_t> key);

/// Appends the first line of a file, with its line end.
void write_jsonl_header(std::string& out, int32_t block_tokens, bool absolute);

/// Appends `request` as a line, with its line end. Text that is no UTF-8 is written with replacement characters.
void write_jsonl_line(std::string& out, const RecordedRequest& request);

}  // namespace kvtide::sim
