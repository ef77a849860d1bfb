#include "hint/hint.h"

#include <gtest/gtest.h>

#include <set>

#include "hint/utf8.h"

namespace kvtide::hint {
namespace {

TEST(Names, EveryValueIsReadBackFromItsOwnName) {
  std::set<std::string_view> seen;
  for (int i = 0; i <= static_cast<int>(Verb::kResume); ++i) {
    const auto verb = static_cast<Verb>(i);
    EXPECT_EQ(parse_verb(verb_name(verb)), verb);
    EXPECT_TRUE(seen.insert(verb_name(verb)).second);
  }
  for (int i = 0; i <= static_cast<int>(Target::kBlocks); ++i) {
    const auto target = static_cast<Target>(i);
    EXPECT_EQ(parse_target(target_name(target)), target);
    EXPECT_TRUE(seen.insert(target_name(target)).second);
  }
  for (int i = 0; i <= static_cast<int>(Outcome::kFailed); ++i) {
    const auto outcome = static_cast<Outcome>(i);
    EXPECT_EQ(parse_outcome(outcome_name(outcome)), outcome);
    EXPECT_TRUE(seen.insert(outcome_name(outcome)).second);
  }
}

TEST(Names, OtherWordsNameNothing) {
  EXPECT_EQ(parse_verb("Offload"), std::nullopt);
  EXPECT_EQ(parse_verb(""), std::nullopt);
  EXPECT_EQ(parse_target("session "), std::nullopt);
  EXPECT_EQ(parse_outcome("apply"), std::nullopt);
}

TEST(Utf8, TakesEveryLengthOfCharacter) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("cli-2026"));
  EXPECT_TRUE(is_utf8("gr\xC3\xBC\xC3\x9F"));
  EXPECT_TRUE(is_utf8("\xE4\xBC\x9A\xE8\xAF\x9D"));
  EXPECT_TRUE(is_utf8("\xF0\x9F\x8C\x8A"));
  EXPECT_TRUE(is_utf8("\xF4\x8F\xBF\xBF"));
  EXPECT_TRUE(is_utf8(std::string_view("a\0b", 3)));
}

TEST(Utf8, RefusesWhatIsNot) {
  EXPECT_FALSE(is_utf8("\x80"));              // a tail without a lead
  EXPECT_FALSE(is_utf8("\xC3"));              // cut short
  EXPECT_FALSE(is_utf8("\xE4\xBC"));          // cut short
  EXPECT_FALSE(is_utf8("\xE4\xBC" "x"));      // a tail missing in the middle
  EXPECT_FALSE(is_utf8("\xC0\xAF"));          // overlong
  EXPECT_FALSE(is_utf8("\xE0\x9F\xBF"));      // overlong
  EXPECT_FALSE(is_utf8("\xF0\x8F\xBF\xBF"));  // overlong
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));      // surrogate
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_FALSE(is_utf8("\xFF"));
}

}  // namespace
}  // namespace kvtide::hint
