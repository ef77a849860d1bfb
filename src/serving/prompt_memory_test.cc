#include "serving/prompt_memory.h"

#include <gtest/gtest.h>

#include "serving/testing/two_ways_text_model.h"

namespace kvtide::serving {
namespace {

std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PromptMemoryTest : public testing::Test {
 protected:
  std::vector<Token> plain(std::string_view text) const { return model_.tokenize(text, true, true); }
  // `prompt` was answered with "ab", generated as two tokens.
  std::vector<Token> remember(PromptMemory& memory, std::string_view tenant, const std::string& prompt) {
    std::vector<Token> tokens = joined(plain(prompt), {'a', 'b'});
    memory.remember(tenant, prompt, "ab", tokens);
    return tokens;
  }
  TwoWaysTextModel model_;
};

TEST_F(PromptMemoryTest, AReplyComesBackAsTheTokensThatWereGenerated) {
  PromptMemory memory(model_, 1U << 20);
  const std::vector<Token> turn = remember(memory, "t", "user:");
  EXPECT_EQ(memory.tokenize("t", "user:ab<end>next"), joined(turn, model_.tokenize("<end>next", false, true)));
  EXPECT_NE(memory.tokenize("t", "user:ab<end>next"), plain("user:ab<end>next"));
  EXPECT_EQ(memory.stats().exact, 2);
  EXPECT_EQ(memory.stats().total, 2);
}

TEST_F(PromptMemoryTest, ALaterTurnUsesTheLongestKnownReply) {
  PromptMemory memory(model_, 1U << 20);
  remember(memory, "t", "user:");
  const std::string second = "user:ab<end>more ab:";
  std::vector<Token> tokens = joined(memory.tokenize("t", second), {'a', 'b'});
  memory.remember("t", second, "ab", tokens);
  EXPECT_EQ(memory.tokenize("t", second + "ab<end>"), joined(tokens, {kTwoWaysEnd}));
}

TEST_F(PromptMemoryTest, OtherTextIsTokenisedPlainly) {
  PromptMemory memory(model_, 1U << 20);
  remember(memory, "t", "user:");
  for (const char* text : {"User:ab<end>", "user:abc<end>", "user:ab", "", "<end>", "<end><end>user:ab<end>"}) {
    EXPECT_EQ(memory.tokenize("t", text), plain(text)) << text;
  }
  EXPECT_EQ(memory.stats().exact, 0);
}

TEST_F(PromptMemoryTest, ATenantNeverMeetsAnothersReplies) {
  PromptMemory memory(model_, 1U << 20);
  remember(memory, "t", "user:");
  EXPECT_EQ(memory.tokenize("u", "user:ab<end>"), plain("user:ab<end>"));
  // Nor by moving letters between the tenant's name and the text.
  EXPECT_EQ(memory.tokenize("tu", "ser:ab<end>"), plain("ser:ab<end>"));
  EXPECT_EQ(memory.tokenize("", "tuser:ab<end>"), plain("tuser:ab<end>"));
}

TEST_F(PromptMemoryTest, AReplyThatTheTemplateTrimsIsKnownTrimmedToo) {
  PromptMemory memory(model_, 1U << 20);
  const std::vector<Token> turn = joined(plain("user:"), {'a', 'b', ' ', '\n'});
  memory.remember("t", "user:", "ab \n", turn);
  EXPECT_EQ(memory.tokenize("t", "user:ab \n<end>"), joined(turn, {kTwoWaysEnd}));
  EXPECT_EQ(memory.tokenize("t", "user:ab<end>"), joined(plain("user:"), {'a', 'b', kTwoWaysEnd}));
  // Trimmed by half is text that nobody generated.
  EXPECT_EQ(memory.tokenize("t", "user:ab <end>"), plain("user:ab <end>"));
}

TEST_F(PromptMemoryTest, AReplyOfBlanksOnlyIsNotTrimmedToThePrompt) {
  PromptMemory memory(model_, 1U << 20);
  memory.remember("t", "user:", "  ", joined(plain("user:"), {' ', ' '}));
  EXPECT_EQ(memory.tokenize("t", "user:<end>"), plain("user:<end>"));
  EXPECT_EQ(memory.stats().exact, 0);
}

TEST_F(PromptMemoryTest, TheBudgetHoldsAndTheLongestUnusedGoesFirst) {
  PromptMemory probe(model_, 1U << 20);
  remember(probe, "t", "p0:");
  const size_t one = probe.stats().bytes;
  ASSERT_GT(one, 0U);
  PromptMemory memory(model_, 3 * one);
  auto known = [&](const std::string& prompt) { return memory.tokenize("t", prompt + "ab<end>") != plain(prompt + "ab<end>"); };
  for (const char* prompt : {"p0:", "p1:", "p2:"}) {
    remember(memory, "t", prompt);
    EXPECT_LE(memory.stats().bytes, 3 * one);
  }
  EXPECT_TRUE(known("p0:"));  // used: now p1 is the longest unused
  remember(memory, "t", "p3:");
  EXPECT_LE(memory.stats().bytes, 3 * one);
  EXPECT_TRUE(known("p0:"));
  EXPECT_FALSE(known("p1:"));
  EXPECT_TRUE(known("p2:"));
  EXPECT_TRUE(known("p3:"));
}

TEST_F(PromptMemoryTest, AReplyLargerThanTheBudgetIsNotKeptAndPushesNothingOut) {
  PromptMemory probe(model_, 1U << 20);
  remember(probe, "t", "p0:");
  PromptMemory memory(model_, probe.stats().bytes);
  remember(memory, "t", "p0:");
  remember(memory, "t", std::string(4096, 'x'));
  EXPECT_NE(memory.tokenize("t", "p0:ab<end>"), plain("p0:ab<end>"));
  EXPECT_EQ(memory.stats().bytes, probe.stats().bytes);
}

TEST_F(PromptMemoryTest, TheSameTextAgainTakesTheNewerTokensAndNoMoreRoom) {
  PromptMemory memory(model_, 1U << 20);
  remember(memory, "t", "user:");
  const size_t bytes = memory.stats().bytes;
  const std::vector<Token> other = joined(plain("user:"), {kTwoWaysPair});
  memory.remember("t", "user:", "ab", other);
  EXPECT_LT(memory.stats().bytes, bytes);  // one token fewer
  EXPECT_EQ(memory.tokenize("t", "user:ab<end>"), joined(other, {kTwoWaysEnd}));
}

TEST_F(PromptMemoryTest, OfTooManyTurnsTheNewestAreLookedUp) {
  PromptMemory memory(model_, 1U << 20);
  std::string history;
  for (int i = 0; i < 5'000; ++i) history += "x<end>";
  const std::vector<Token> turn = remember(memory, "t", history);
  EXPECT_EQ(memory.tokenize("t", history + "ab<end>"), joined(turn, {kTwoWaysEnd}));
}

TEST_F(PromptMemoryTest, ATextOfNothingButTurnEndsIsBounded) {
  PromptMemory memory(model_, 1U << 20);
  std::string marks;
  for (int i = 0; i < 20'000; ++i) marks += "<end>";
  EXPECT_EQ(memory.tokenize("t", marks).size(), 20'001U);
}

}  // namespace
}  // namespace kvtide::serving
