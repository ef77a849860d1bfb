// The parts of `affinity` that can be left out one by one, to measure what each buys (`kvtide sim --without`). A server uses all of them.
//
// Threading: value type.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvtide::policy {

enum class Idea : uint8_t {
  kLearning,    // pauses are learned; without: the published ones hold for ever
  kUnfinished,  // pauses that still last are learned from
  kGittins,     // the best horizon for each elapsed time; without: one that never gives up
  kTool,        // what kinds of pause are told apart by: the tool that is waited for,
  kReply,       // the length of the reply,
  kCutShort,    // whether it ended by itself,
  kPace,        // the session's usual pause,
  kNewcomer,    // whether a new session followed at once,
  kLeftBehind,  // whether a prompt came since that shares some of its context
  kTrust,       // announced pauses weigh as much as they proved true; without: they are believed
  kSuperseded,  // what nobody claims goes first; without: it is worth as much as what is claimed
};
inline constexpr std::array<std::string_view, 11> kIdeaNames{"learning", "unfinished", "gittins",     "tool",  "reply",     "cut-short",
                                                             "pace",     "newcomer",   "left-behind", "trust", "superseded"};

class Ideas {
 public:
  bool has(Idea idea) const { return (left_out_ >> static_cast<uint32_t>(idea) & 1U) == 0; }
  void leave_out(Idea idea) { left_out_ |= 1U << static_cast<uint32_t>(idea); }

 private:
  uint32_t left_out_ = 0;
};

inline std::optional<Idea> find_idea(std::string_view name) {
  for (size_t i = 0; i < kIdeaNames.size(); ++i) {
    if (kIdeaNames[i] == name) return static_cast<Idea>(i);
  }
  return std::nullopt;
}

}  // namespace kvtide::policy
