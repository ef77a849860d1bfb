// What every engine behind engine/api/engine.h must do. Include it in a test program and instantiate EngineContract over its cases.
//
// All tests of a case share one engine, and each leaves it empty: TearDown checks that no cell stays in use.
//
// Threading: as GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/api/engine.h"

namespace kvtide::engine {

/// A case's engine must have blocks of at most 16 tokens, at least 3 sequences of at least 400 tokens (seq_tokens_max not above 600), steps of
/// at least 200 tokens, and in the unified layout at most 1200 cells.
struct EngineCase {
  std::string name;
  std::function<std::shared_ptr<Engine>()> make;
  /// Whether logits change in their last bits when the same KV bytes lie in other cells, because sums over cells run in another order. No
  /// tolerance could stand for it: a wrong byte may change as little. Tests then keep the cells in place, or compare bytes instead.
  bool place_matters = false;
};

inline void PrintTo(const EngineCase& c, std::ostream* os) { *os << c.name; }

using Bytes = std::vector<std::byte>;

inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

class EngineContract : public testing::TestWithParam<EngineCase> {
 protected:
  static constexpr SeqId kA{0}, kB{1}, kC{2};

  void SetUp() override {
    auto& slot = engines()[GetParam().name];
    if (!slot) slot = GetParam().make();
    ASSERT_NE(slot, nullptr);
    engine_ = slot.get();
    lengths_.assign(static_cast<size_t>(engine_->info().seqs), 0);
  }

  void TearDown() override {
    if (engine_ == nullptr) return;
    for (size_t seq = 0; seq < lengths_.size(); ++seq) engine_->truncate(SeqId(static_cast<uint32_t>(seq)), 0);
    EXPECT_EQ(engine_->cells_used(), 0);
  }

  /// Engines end before main() does: libraries below them have static objects of their own.
  static void TearDownTestSuite() { engines().clear(); }

  static std::map<std::string, std::shared_ptr<Engine>>& engines() {
    static std::map<std::string, std::shared_ptr<Engine>> all;
    return all;
  }

  const EngineInfo& info() const { return engine_->info(); }
  bool unified() const { return info().layout == Layout::kUnified; }
  int32_t block() const { return info().block_tokens; }

  /// `n` tokens that look random and depend on `seed` only.
  static std::vector<Token> chain(uint64_t seed, int32_t n) {
    base::Random random(seed);
    std::vector<Token> tokens(static_cast<size_t>(n));
    for (Token& token : tokens) token = 40 + static_cast<Token>(random.below(80));
    return tokens;
  }

  base::Status try_feed(SeqId seq, const std::vector<Token>& tokens) {
    const StepItem item{.seq = seq, .pos = lengths_[seq.value], .tokens = tokens, .want_logits = true};
    auto status = engine_->step({&item, 1});
    if (status) lengths_[seq.value] += static_cast<int32_t>(tokens.size());
    return status;
  }

  /// Feeds `tokens` in steps of `chunk` and gives the logits of the last.
  std::vector<float> feed(SeqId seq, const std::vector<Token>& tokens, size_t chunk = 64) {
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const std::vector<Token> part(tokens.begin() + static_cast<ptrdiff_t>(at),
                                    tokens.begin() + static_cast<ptrdiff_t>(std::min(tokens.size(), at + chunk)));
      const auto status = try_feed(seq, part);
      EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
      if (!status) return {};
    }
    const auto logits = engine_->logits(0);
    return {logits.begin(), logits.end()};
  }

  void cut(SeqId seq, int32_t tokens) {
    engine_->truncate(seq, tokens);
    lengths_[seq.value] = tokens;
  }

  void share(SeqId from, SeqId to, int32_t tokens) {
    engine_->share(from, to, tokens);
    lengths_[to.value] = tokens;
  }

  std::vector<Bytes> export_blocks(SeqId seq, int32_t first, int32_t count) {
    std::vector<Bytes> blocks(static_cast<size_t>(count), Bytes(static_cast<size_t>(info().block_bytes)));
    const std::vector<std::span<std::byte>> views(blocks.begin(), blocks.end());
    const auto status = engine_->export_blocks(seq, first, views);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    return blocks;
  }

  base::Status try_import(SeqId seq, const std::vector<Bytes>& blocks) {
    const std::vector<std::span<const std::byte>> views(blocks.begin(), blocks.end());
    auto status = engine_->import_blocks(seq, lengths_[seq.value] / block(), views);
    if (status) lengths_[seq.value] += static_cast<int32_t>(blocks.size()) * block();
    return status;
  }

  void import_blocks(SeqId seq, const std::vector<Bytes>& blocks) {
    const auto status = try_import(seq, blocks);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
  }

  /// The same KV bytes, then the same batch: the same logits, bit for bit.
  static void expect_same(const std::vector<float>& a, const std::vector<float>& b) { EXPECT_EQ(largest_difference(a, b), 0); }

  void empty_all() {
    for (size_t seq = 0; seq < lengths_.size(); ++seq) cut(SeqId(static_cast<uint32_t>(seq)), 0);
  }

  static Token argmax(std::span<const float> logits) {
    return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  static SamplingParams greedy() {
    SamplingParams params;
    params.temperature = 0;
    return params;
  }

  /// Allocates and frees around, so that what comes next lies in other cells than at first.
  void churn() {
    feed(kC, chain(77, 37));
    cut(kA, 0);
    feed(kA, chain(78, 51));
    cut(kC, 0);
    feed(kC, chain(79, 23));
    cut(kA, 0);
  }

  Engine* engine_ = nullptr;
  std::vector<int32_t> lengths_;
};

TEST_P(EngineContract, DescribesItself) {
  EXPECT_GE(info().seqs, 3);
  EXPECT_TRUE(info().reuse) << info().reuse_off_reason;
  EXPECT_EQ(info().block_bytes, info().token_bytes * info().block_tokens);
  EXPECT_GT(info().block_bytes, 0);
  EXPECT_GE(info().seq_tokens_max, 400);
  EXPECT_GE(info().device_tokens, info().seq_tokens_max);
  EXPECT_NE(info().fingerprint, base::Digest{});
  EXPECT_EQ(engine_->cells_used(), 0);
}

TEST_P(EngineContract, EqualChainsInEqualStepsGiveEqualLogits) {
  const auto a = feed(kA, chain(1, 50));
  const auto b = feed(kB, chain(1, 50));
  EXPECT_EQ(static_cast<int32_t>(a.size()), info().vocab_tokens);
  expect_same(a, b);
  EXPECT_EQ(engine_->cells_used(), 100);
}

TEST_P(EngineContract, OtherTokensAnywhereGiveOtherLogits) {
  auto other = chain(1, 50);
  other[3] += 1;
  const auto a = feed(kA, chain(1, 50));
  const float difference = largest_difference(a, feed(kB, other));
  RecordProperty("difference", std::to_string(difference));
  EXPECT_GT(difference, 0);
}

TEST_P(EngineContract, SharingIsFreeAndBothGoOnAlone) {
  if (!unified()) GTEST_SKIP() << "lanes do not share";
  const auto tail = chain(2, 9);
  feed(kA, chain(1, 60));
  share(kA, kB, 60);
  EXPECT_EQ(engine_->cells_used(), 60);
  const auto b = feed(kB, chain(3, 9));
  const auto a = feed(kA, tail);
  EXPECT_EQ(engine_->cells_used(), 78);
  EXPECT_NE(a, b);

  cut(kA, 0);  // the shared part lives on in B
  EXPECT_EQ(engine_->cells_used(), 69);
  cut(kB, 30);
  EXPECT_EQ(engine_->cells_used(), 30);

  empty_all();  // the same places, nothing shared
  feed(kA, chain(1, 60));
  feed(kC, chain(3, 9));
  expect_same(feed(kA, tail), a);
}

TEST_P(EngineContract, SharingAPartThenDivergingIsAsIfComputed) {
  if (!unified()) GTEST_SKIP() << "lanes do not share";
  feed(kA, chain(1, 32));
  feed(kA, chain(2, 20));
  share(kA, kB, 32);
  const auto b = feed(kB, chain(3, 12));
  feed(kC, chain(1, 32));
  expect_same(feed(kC, chain(3, 12)), b);
}

TEST_P(EngineContract, DedupFreesTheCopyAndKeepsTheBytes) {
  if (!unified()) GTEST_SKIP() << "lanes do not share";
  feed(kA, chain(1, 48));
  feed(kB, chain(1, 48));
  feed(kB, chain(2, 5));
  const int32_t shared = 2 * block();
  const auto before = export_blocks(kB, 0, 3);
  engine_->dedup(kA, kB, 0, shared);
  EXPECT_EQ(engine_->cells_used(), 48 + 53 - shared);
  EXPECT_EQ(export_blocks(kB, 0, 3), before);
  cut(kA, 0);  // what B now holds stays
  EXPECT_EQ(engine_->cells_used(), 53);
  EXPECT_EQ(export_blocks(kB, 0, 3), before);
  feed(kB, chain(3, 7));
}

TEST_P(EngineContract, TruncatedTailIsForgotten) {
  feed(kA, chain(1, 32));
  feed(kA, chain(2, 30));
  cut(kA, 32);
  EXPECT_EQ(engine_->cells_used(), 32);
  const auto a = feed(kA, chain(3, 11));
  empty_all();
  feed(kA, chain(1, 32));
  expect_same(feed(kA, chain(3, 11)), a);
}

TEST_P(EngineContract, RestoredElsewhereAfterChurnIsTheSame) {
  const int32_t blocks = 6;
  feed(kA, chain(1, blocks * block()));
  const auto saved = export_blocks(kA, 0, blocks);
  const auto expected = feed(kA, chain(2, 13));
  churn();
  import_blocks(kB, saved);
  EXPECT_EQ(export_blocks(kB, 0, blocks), saved);
  expect_same(feed(kB, chain(2, 13)), expected);
}

TEST_P(EngineContract, RestoredInPlaceIsBitIdentical) {
  const int32_t blocks = 5;
  feed(kA, chain(1, blocks * block()));
  const auto saved = export_blocks(kA, 0, blocks);
  const auto expected = feed(kA, chain(2, 13));
  cut(kA, 0);
  import_blocks(kA, saved);
  EXPECT_EQ(feed(kA, chain(2, 13)), expected);
}

TEST_P(EngineContract, BlocksJoinAPrefixThatIsThere) {
  const int32_t blocks = 6;
  feed(kA, chain(1, 2 * block()));
  feed(kA, chain(2, 4 * block()));
  const auto saved = export_blocks(kA, 0, blocks);
  const auto expected = feed(kA, chain(3, 8));
  churn();
  feed(kB, chain(1, 2 * block()));
  import_blocks(kB, {saved.begin() + 2, saved.begin() + 4});
  import_blocks(kB, {saved.begin() + 4, saved.end()});
  EXPECT_EQ(export_blocks(kB, 0, blocks), saved);
  const auto b = feed(kB, chain(3, 8));
  if (!GetParam().place_matters) expect_same(b, expected);
}

TEST_P(EngineContract, RunsLongerThanAnyBufferTravelToo) {
  const int32_t blocks = 20;
  feed(kA, chain(1, blocks * block() + 5));
  const auto saved = export_blocks(kA, 0, blocks);
  const auto middle = export_blocks(kA, 7, 3);
  EXPECT_TRUE(std::equal(middle.begin(), middle.end(), saved.begin() + 7));
  import_blocks(kB, saved);
  EXPECT_EQ(export_blocks(kB, 3, 17), (std::vector<Bytes>{saved.begin() + 3, saved.end()}));
  const auto b = feed(kB, chain(2, 3));
  cut(kA, blocks * block());
  expect_same(feed(kA, chain(2, 3)), b);
}

TEST_P(EngineContract, AnExportGivesWhatIsThereNow) {
  feed(kA, chain(1, 4 * block()));
  const auto first = export_blocks(kA, 0, 4);
  cut(kA, 2 * block());
  feed(kA, chain(2, 2 * block()));
  const auto second = export_blocks(kA, 0, 4);  // as long as before
  EXPECT_EQ(second[1], first[1]);
  EXPECT_NE(second[2], first[2]);
  EXPECT_EQ(export_blocks(kA, 2, 1)[0], second[2]);

  feed(kB, chain(3, 2 * block()));
  const auto other = export_blocks(kB, 0, 2);
  EXPECT_NE(other, (std::vector<Bytes>{second[0], second[1]}));
  EXPECT_EQ(export_blocks(kA, 0, 2), (std::vector<Bytes>{second[0], second[1]}));
  import_blocks(kB, {second[2]});
  EXPECT_EQ(export_blocks(kB, 0, 3), (std::vector<Bytes>{other[0], other[1], second[2]}));
  cut(kA, 0);
  import_blocks(kA, {first.begin(), first.end()});
  EXPECT_EQ(export_blocks(kA, 0, 4), first);
}

TEST_P(EngineContract, SharedCellsExportAsTheyAre) {
  if (!unified()) GTEST_SKIP() << "lanes do not share";
  feed(kA, chain(1, 4 * block()));
  const auto saved = export_blocks(kA, 0, 4);
  share(kA, kB, 3 * block());
  share(kA, kC, 2 * block());
  const int64_t before = engine_->cells_used();
  EXPECT_EQ(export_blocks(kB, 1, 2), (std::vector<Bytes>{saved.begin() + 1, saved.begin() + 3}));
  EXPECT_EQ(engine_->cells_used(), before);
}

TEST_P(EngineContract, WrongBytesChangeTheLogits) {
  feed(kA, chain(1, 3 * block()));
  auto saved = export_blocks(kA, 0, 3);
  const auto expected = feed(kA, chain(2, 4));
  for (size_t i = 0; i < saved[1].size() / 2; ++i) saved[1][i] ^= std::byte{0x01};
  import_blocks(kB, saved);
  const float difference = largest_difference(feed(kB, chain(2, 4)), expected);
  RecordProperty("difference", std::to_string(difference));
  EXPECT_GT(difference, 0);
}

TEST_P(EngineContract, ShortAndLongPayloadsAreRefusedAndTheSequenceIsIntact) {
  feed(kA, chain(1, 4 * block()));
  const auto saved = export_blocks(kA, 0, 4);
  const auto expected = feed(kA, chain(2, 6));
  import_blocks(kB, {saved[0], saved[1]});
  for (const ptrdiff_t change : {-1, 1}) {
    auto bad = std::vector<Bytes>{saved[2], saved[3]};
    bad[1].resize(static_cast<size_t>(static_cast<ptrdiff_t>(bad[1].size()) + change));
    const auto status = try_import(kB, bad);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, base::Code::kCorrupt);
  }
  EXPECT_EQ(export_blocks(kB, 0, 2), (std::vector<Bytes>{saved[0], saved[1]}));
  import_blocks(kB, {saved[2], saved[3]});
  expect_same(feed(kB, chain(2, 6)), expected);
}

TEST_P(EngineContract, ImportWithoutRoomChangesNothing) {
  feed(kA, chain(1, 3 * block()));
  const auto saved = export_blocks(kA, 0, 3);
  const int32_t room = unified() ? static_cast<int32_t>(info().device_tokens) : info().seq_tokens_max;
  import_blocks(kB, {saved[0]});
  if (unified()) {  // fill the pool by others, up to one block of room
    int32_t left = room - static_cast<int32_t>(engine_->cells_used()) - 2 * block() + 1;
    for (uint32_t seq = 2; left > 0; ++seq) {
      const int32_t n = std::min(left, info().seq_tokens_max);
      feed(SeqId(seq), chain(seq, n));
      left -= n;
    }
  } else {
    for (int32_t at = 2; at < info().seq_tokens_max / block(); ++at) import_blocks(kB, {saved[1]});
  }
  const auto before = export_blocks(kB, 0, 1);
  const int64_t used = engine_->cells_used();
  const auto status = try_import(kB, {saved[1], saved[2]});
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, base::Code::kResourceExhausted);
  EXPECT_EQ(engine_->cells_used(), used);
  EXPECT_EQ(export_blocks(kB, 0, 1), before);
}

TEST_P(EngineContract, StepWithoutRoomChangesNothing) {
  const int32_t longest = info().seq_tokens_max;
  feed(kA, chain(1, 24));
  feed(kB, chain(2, longest - 3));
  const int64_t used = engine_->cells_used();
  const auto a_more = chain(3, 4);
  const auto b_more = chain(4, 10);
  const std::vector<StepItem> items{{.seq = kA, .pos = 24, .tokens = a_more, .want_logits = true},
                                    {.seq = kB, .pos = longest - 3, .tokens = b_more, .want_logits = true}};
  const auto status = engine_->step(items);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, base::Code::kResourceExhausted);
  EXPECT_EQ(engine_->cells_used(), used);
  const auto a = feed(kA, a_more);  // A had not advanced
  empty_all();                      // the same without the failure
  feed(kA, chain(1, 24));
  feed(kB, chain(2, longest - 3));
  expect_same(feed(kA, a_more), a);
}

TEST_P(EngineContract, AFullPoolRefusesTheStepAndServesAfterwards) {
  if (!unified()) GTEST_SKIP() << "lanes have rooms of their own";
  int32_t left = static_cast<int32_t>(info().device_tokens) - 40;
  feed(kA, chain(1, 32));
  for (uint32_t seq = 1; left > 0; ++seq) {
    const int32_t n = std::min(left, info().seq_tokens_max);
    feed(SeqId(seq), chain(seq, n));
    left -= n;
  }
  const auto before = export_blocks(kA, 0, 2);
  const auto more = chain(5, 64);
  const auto status = try_feed(kA, more);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, base::Code::kResourceExhausted);
  EXPECT_EQ(engine_->cells_used(), info().device_tokens - 8);
  EXPECT_EQ(export_blocks(kA, 0, 2), before);
  cut(kB, 0);
  feed(kA, more);
  EXPECT_EQ(export_blocks(kA, 0, 2), before);
}

TEST_P(EngineContract, EachItemGetsItsOwnLogits) {
  const auto a = chain(1, 20);
  const auto b = chain(2, 1);
  const auto c = chain(3, 7);
  const std::vector<StepItem> items{{.seq = kC, .pos = 0, .tokens = c, .want_logits = true},
                                    {.seq = kA, .pos = 0, .tokens = a, .want_logits = false},
                                    {.seq = kB, .pos = 0, .tokens = b, .want_logits = true}};
  ASSERT_TRUE(engine_->step(items).has_value());
  const std::vector<float> got_c(engine_->logits(0).begin(), engine_->logits(0).end());
  const std::vector<float> got_b(engine_->logits(2).begin(), engine_->logits(2).end());
  for (const SeqId seq : {kA, kB, kC}) cut(seq, 0);
  // Other batch shapes give other rounding; other rows would give other logits altogether.
  EXPECT_LT(largest_difference(feed(kC, c), got_c), 0.5F);
  EXPECT_LT(largest_difference(feed(kB, b), got_b), 0.5F);
  EXPECT_GT(largest_difference(got_b, got_c), 1.0F);
}

TEST_P(EngineContract, GreedyIsTheBestRawLogitWithItsLogprob) {
  auto params = greedy();
  params.top_logprobs = 4;
  auto sampler = engine_->make_sampler(params);
  ASSERT_TRUE(sampler.has_value());
  auto tokens = chain(1, 20);
  for (int i = 0; i < 8; ++i) {
    const auto logits = feed(kA, tokens);
    const Sample sample = (*sampler)->sample(0);
    ASSERT_EQ(sample.token, argmax(logits));
    ASSERT_EQ(sample.top.size(), 4U);
    EXPECT_EQ(sample.top[0].token, sample.token);
    EXPECT_FLOAT_EQ(sample.top[0].logprob, sample.logprob);
    EXPECT_TRUE(std::is_sorted(sample.top.begin(), sample.top.end(), [](auto& x, auto& y) { return x.logprob > y.logprob; }));
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit - logits[sample.token]));
    EXPECT_NEAR(sample.logprob, -std::log(sum), 1e-3);
    tokens = {sample.token};
  }
}

TEST_P(EngineContract, GreedyThroughTheWholeChainIsTheSameToken) {
  auto params = greedy();
  params.logit_bias = {{45, -1.0F}};  // leaves the fast path, changes nothing else
  auto sampler = engine_->make_sampler(params);
  ASSERT_TRUE(sampler.has_value());
  const auto logits = feed(kA, chain(1, 20));
  auto biased = logits;
  biased[45] -= 1.0F;
  EXPECT_EQ((*sampler)->sample(0).token, argmax(biased));
}

TEST_P(EngineContract, BiasSteersAndUnknownTokensAreRefused) {
  auto params = greedy();
  params.logit_bias = {{70, 1000.0F}};
  feed(kA, chain(1, 20));
  EXPECT_EQ((*engine_->make_sampler(params))->sample(0).token, 70);
  params.logit_bias = {{info().vocab_tokens, 1.0F}};
  const auto refused = engine_->make_sampler(params);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, base::Code::kInvalidArgument);
}

TEST_P(EngineContract, EqualSeedsDrawEqualReplies) {
  const auto draw = [&](uint32_t seed) {
    SamplingParams params;
    params.temperature = 3;
    params.top_p = 1;
    params.min_p = 0;
    params.seed = seed;
    auto sampler = engine_->make_sampler(params);
    std::vector<Token> out;
    for (int i = 0; i < 16; ++i) out.push_back((*sampler)->sample(0).token);
    return out;
  };
  feed(kA, chain(1, 20));
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

TEST_P(EngineContract, ForcedTokensAreTakenLikeSampledOnes) {
  const auto run = [&](bool forced) {
    auto sampler = engine_->make_sampler(greedy());
    for (const Token token : chain(1, 20)) (*sampler)->accept(token, false);
    auto tokens = chain(1, 20);
    std::vector<Token> reply;
    cut(kA, 0);
    for (int i = 0; i < 6; ++i) {
      feed(kA, tokens);
      if (forced && i < 3) {
        (*sampler)->accept(50 + i, true);
        tokens = {50 + i};
      } else {
        tokens = {(*sampler)->sample(0).token};
      }
      reply.push_back(tokens[0]);
    }
    return reply;
  };
  const auto forced = run(true);
  EXPECT_EQ((std::vector<Token>{forced.begin(), forced.begin() + 3}), (std::vector<Token>{50, 51, 52}));
  EXPECT_EQ(run(true), forced);
  EXPECT_NE(run(false), forced);
}

}  // namespace kvtide::engine
