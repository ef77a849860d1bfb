// What clients say about their sessions, in one model for every dialect, and what is answered.
//
// A hint never is an HTTP error: an unknown field is ignored, a known field of a wrong type is a Problem in the receipt, and the
// inference goes on.
//
// Threading: value types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace kvtide::hint {

inline constexpr size_t kIdBytesMax = 512;      // of a session id, UTF-8
inline constexpr size_t kActionsMax = 64;       // in one message
inline constexpr size_t kHintIdBytesMax = 128;
inline constexpr size_t kToolBytesMax = 128;    // of a tool name, UTF-8
inline constexpr size_t kProblemsMax = 64;      // in one message; later ones are not reported

enum class Verb { kOffload, kPrefetch, kEvict, kRetain, kEnd, kPause, kResume };
enum class Target { kSession, kMessages, kTools, kTokens, kBlocks };
enum class Outcome { kApplied, kDeferred, kClipped, kDuplicate, kMissing, kStale, kRejected, kUnsupported, kFailed };

std::string_view verb_name(Verb verb);
std::string_view target_name(Target target);
std::string_view outcome_name(Outcome outcome);

/// The value of that name; nothing for any other text.
std::optional<Verb> parse_verb(std::string_view name);
std::optional<Target> parse_target(std::string_view name);
std::optional<Outcome> parse_outcome(std::string_view name);

/// Who speaks. Empty session_id: nobody said. A session that is its own parent is a root and has an empty parent_id here.
struct Identity {
  std::string session_id;
  std::string parent_id;

  friend bool operator==(const Identity&, const Identity&) = default;
};

struct Action {
  Verb verb = Verb::kOffload;
  Target target = Target::kSession;
  std::optional<int64_t> start;  // half-open range for targets other than session
  std::optional<int64_t> end;
  std::optional<base::DurationNs> ttl_ns;       // retain: how long
  std::optional<base::DurationNs> expected_ns;  // pause: how long it will take; prefetch: when it is needed, from now
  std::string tool;                             // pause: which tool
  std::string hint_id;                          // idempotency key; empty: one is made
  Identity identity;                            // who it is about

  friend bool operator==(const Action&, const Action&) = default;
};

/// A known field that could not be used. `field` is a path such as "agent_hint.cache_control.ttl".
struct Problem {
  std::string field;
  std::string message;

  friend bool operator==(const Problem&, const Problem&) = default;
};

/// Everything one request or message says.
struct Hints {
  std::string dialect;           // "none", "seed", "rfc52113", "native", ...
  Identity identity;
  bool manage_request = false;   // nothing to infer: answer at once
  std::vector<Action> actions;   // in the order given
  std::vector<Problem> problems;
  std::optional<int64_t> turn_number;

  friend bool operator==(const Hints&, const Hints&) = default;
};

struct Receipt {
  std::string hint_id;
  std::string verb;
  Outcome status = Outcome::kApplied;
  std::string session_id;
  uint32_t generation = 0;
  int64_t blocks = 0;            // that really moved or were freed
  int64_t bytes = 0;             // of those
  std::string from;              // tier names; empty when nothing moved
  std::string to;
  int64_t shared_kept = 0;       // blocks in range that others claim
  std::string reason;            // empty: none

  friend bool operator==(const Receipt&, const Receipt&) = default;
};

/// `receipt` with this outcome.
inline Receipt answer(Receipt receipt, Outcome status, std::string reason) {
  receipt.status = status;
  receipt.reason = std::move(reason);
  return receipt;
}

}  // namespace kvtide::hint
