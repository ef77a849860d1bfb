// What only the fake promises; what every engine promises is in test/contract.
#include "engine/fake/fake_engine.h"

#include <gtest/gtest.h>

#include "engine/fake/fake_text_model.h"

namespace kvtide::engine {
namespace {

const SeqId kA{0};
const SeqId kB{1};

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

std::vector<Token> greedy_reply(FakeEngine& engine, SeqId seq, std::vector<Token> prompt, int32_t pos, size_t most) {
  auto sampler = engine.make_sampler(greedy());
  std::vector<Token> reply;
  while (reply.size() < most) {
    const StepItem item{.seq = seq, .pos = pos, .tokens = prompt, .want_logits = true};
    EXPECT_TRUE(engine.step({&item, 1}).has_value());
    pos += static_cast<int32_t>(prompt.size());
    prompt = {(*sampler)->sample(0).token};
    reply.push_back(prompt.front());
    if (reply.back() == kFakeTurnEnd) break;
  }
  return reply;
}

std::vector<std::byte> export_one(FakeEngine& engine, SeqId seq, int32_t block) {
  std::vector<std::byte> bytes(static_cast<size_t>(engine.info().block_bytes));
  const std::span<std::byte> out(bytes);
  EXPECT_TRUE(engine.export_blocks(seq, block, {&out, 1}).has_value());
  return bytes;
}

void import_one(FakeEngine& engine, SeqId seq, int32_t block, const std::vector<std::byte>& bytes) {
  const std::span<const std::byte> in(bytes);
  EXPECT_TRUE(engine.import_blocks(seq, block, {&in, 1}).has_value());
}

TEST(FakeEngine, RepliesArePrintableAndEnd) {
  auto engine = make_fake_engine();
  int ended = 0;
  for (Token first = 65; first < 75; ++first) {
    const auto reply = greedy_reply(*engine, kA, {first}, 0, 400);
    for (const Token token : reply) EXPECT_TRUE(token == kFakeTurnEnd || (32 <= token && token <= 126)) << token;
    ended += reply.back() == kFakeTurnEnd ? 1 : 0;
    engine->truncate(kA, 0);
  }
  EXPECT_GT(ended, 5);
}

/// The reason why this fake exists: a cache that returns wrong bytes cannot hide.
TEST(FakeEngine, OneWrongByteInARestoredBlockChangesTheReply) {
  auto engine = make_fake_engine();
  const std::vector<Token> prompt(48, 'x');
  const auto right = greedy_reply(*engine, kA, prompt, 0, 8);
  const auto first = export_one(*engine, kA, 0);
  const auto second = export_one(*engine, kA, 1);

  for (size_t wrong = 0; wrong < first.size(); wrong += 7) {
    auto bad = first;
    bad[wrong] ^= std::byte{1};
    import_one(*engine, kB, 0, bad);
    import_one(*engine, kB, 1, second);
    EXPECT_NE(greedy_reply(*engine, kB, std::vector<Token>(16, 'x'), 32, 8), right) << wrong;
    engine->truncate(kB, 0);
  }
  import_one(*engine, kB, 0, first);
  import_one(*engine, kB, 1, second);
  EXPECT_EQ(greedy_reply(*engine, kB, std::vector<Token>(16, 'x'), 32, 8), right);
}

TEST(FakeEngine, BlocksAtTheWrongPositionChangeTheReply) {
  auto engine = make_fake_engine();
  const std::vector<Token> prompt(48, 'x');  // equal tokens in every block: only positions tell them apart
  const auto right = greedy_reply(*engine, kA, prompt, 0, 8);
  import_one(*engine, kB, 0, export_one(*engine, kA, 1));
  import_one(*engine, kB, 1, export_one(*engine, kA, 0));
  EXPECT_NE(greedy_reply(*engine, kB, std::vector<Token>(16, 'x'), 32, 8), right);
}

TEST(FakeEngine, HolderCountsSurviveSharingAndDedup) {
  auto engine = make_fake_engine();
  greedy_reply(*engine, kA, std::vector<Token>(64, 'q'), 0, 1);
  greedy_reply(*engine, kB, std::vector<Token>(64, 'q'), 0, 1);
  EXPECT_EQ(engine->cells_used(), 128);
  engine->dedup(kA, kB, 0, 64);
  EXPECT_EQ(engine->cells_used(), 64);
  engine->check_invariants();
  engine->truncate(kA, 0);
  EXPECT_EQ(engine->cells_used(), 64);
  engine->truncate(kB, 10);
  engine->check_invariants();
  EXPECT_EQ(engine->cells_used(), 10);
}

TEST(FakeEngine, InjectedFailuresChangeNothing) {
  auto engine = make_fake_engine();
  const std::vector<Token> prompt(20, 'x');
  engine->fail_next_step({base::Code::kInternal, "told to"});
  const StepItem item{.seq = kA, .pos = 0, .tokens = prompt, .want_logits = true};
  EXPECT_FALSE(engine->step({&item, 1}).has_value());
  EXPECT_EQ(engine->cells_used(), 0);
  EXPECT_TRUE(engine->step({&item, 1}).has_value());
}

TEST(FakeEngine, SeedDecidesTheSample) {
  auto engine = make_fake_engine();
  const std::vector<Token> prompt(20, 'x');
  const StepItem item{.seq = kA, .pos = 0, .tokens = prompt, .want_logits = true};
  ASSERT_TRUE(engine->step({&item, 1}).has_value());
  const auto draw = [&](uint32_t seed) {
    SamplingParams params;
    params.temperature = 20;
    params.top_p = 1;
    params.top_k = 0;
    params.min_p = 0;
    params.seed = seed;
    auto sampler = engine->make_sampler(params);
    std::vector<Token> out;
    for (int i = 0; i < 12; ++i) out.push_back((*sampler)->sample(0).token);
    return out;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(FakeEngineDeathTest, BrokenPreconditionsAbort) {
  auto engine = make_fake_engine({.layout = Layout::kLanes, .seqs = 2});
  const std::vector<Token> token{65};
  const StepItem ahead{.seq = kA, .pos = 3, .tokens = token};
  EXPECT_DEATH((void)engine->step({&ahead, 1}), "CHECK failed");
  EXPECT_DEATH(engine->share(kA, kB, 1), "CHECK failed");
  EXPECT_DEATH(engine->truncate(SeqId{9}, 0), "CHECK failed");
}

}  // namespace
}  // namespace kvtide::engine
