#include <array>
#include <utility>

#include "base/check.h"
#include "hint/hint.h"

namespace kvtide::hint {
namespace {

template <typename Value, size_t kCount>
using Names = std::array<std::pair<Value, std::string_view>, kCount>;

constexpr Names<Verb, 7> kVerbs{{{Verb::kOffload, "offload"},
                                 {Verb::kPrefetch, "prefetch"},
                                 {Verb::kEvict, "evict"},
                                 {Verb::kRetain, "retain"},
                                 {Verb::kEnd, "end"},
                                 {Verb::kPause, "pause"},
                                 {Verb::kResume, "resume"}}};

constexpr Names<Target, 5> kTargets{{{Target::kSession, "session"},
                                     {Target::kMessages, "messages"},
                                     {Target::kTools, "tools"},
                                     {Target::kTokens, "tokens"},
                                     {Target::kBlocks, "blocks"}}};

constexpr Names<Outcome, 9> kOutcomes{{{Outcome::kApplied, "applied"},
                                       {Outcome::kDeferred, "deferred"},
                                       {Outcome::kClipped, "clipped"},
                                       {Outcome::kDuplicate, "duplicate"},
                                       {Outcome::kMissing, "missing"},
                                       {Outcome::kStale, "stale"},
                                       {Outcome::kRejected, "rejected"},
                                       {Outcome::kUnsupported, "unsupported"},
                                       {Outcome::kFailed, "failed"}}};

template <typename Value, size_t kCount>
std::string_view name_in(const Names<Value, kCount>& names, Value value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  KV_CHECK(false);  // a value outside its enum
}

template <typename Value, size_t kCount>
std::optional<Value> value_in(const Names<Value, kCount>& names, std::string_view name) {
  for (const auto& [value, known] : names) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view verb_name(Verb verb) { return name_in(kVerbs, verb); }
std::string_view target_name(Target target) { return name_in(kTargets, target); }
std::string_view outcome_name(Outcome outcome) { return name_in(kOutcomes, outcome); }

std::optional<Verb> parse_verb(std::string_view name) { return value_in(kVerbs, name); }
std::optional<Target> parse_target(std::string_view name) { return value_in(kTargets, name); }
std::optional<Outcome> parse_outcome(std::string_view name) { return value_in(kOutcomes, name); }

}  // namespace kvtide::hint
