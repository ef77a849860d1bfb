// Reuse under pressure: whatever is evicted, restored, preempted or failed, a reply is that of a fresh loop without any reuse.
#include <gtest/gtest.h>

#include "serving/loop.h"
#include "serving/testing/harness.h"

namespace kvtide::serving {
namespace {

using engine::Layout;

Scene tight(Layout layout, const std::string& policy, int64_t host_blocks) {
  Scene scene;
  scene.engine.layout = layout;
  scene.engine.seqs = layout == Layout::kLanes ? 2 : 6;
  scene.engine.device_tokens = 640;
  scene.engine.seq_tokens_max = 512;
  scene.host_blocks = host_blocks;
  scene.options.policy = policy;
  return scene;
}

struct Chat {
  std::string session;
  std::string prompt;
};

std::vector<Chat> chats(int count) {
  std::vector<Chat> out;
  const std::string system = "You are an agent with a long common instruction that all sessions share, word for word. ";
  for (int i = 0; i < count; ++i) {
    out.push_back({"s" + std::to_string(i), system + std::string(60, static_cast<char>('a' + i)) + " begin:"});
  }
  return out;
}

// Every chat takes a turn at the same time; replies and reports are checked, prompts grow by what was said.
void take_turns(Harness& h, std::vector<Chat>& all, int turn) {
  std::vector<Harness::Submitted> asked;
  for (const Chat& chat : all) asked.push_back(h.submit(greedy(chat.prompt, chat.session)));
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(asked[i].reply->wait_end()) << all[i].session;
    ASSERT_FALSE(asked[i].reply->failed()) << asked[i].reply->last().error.message;
    const std::string said = asked[i].reply->text();
    ASSERT_EQ(said, fresh_reply(all[i].prompt)) << all[i].session << " turn " << turn;
    const KvReport kv = asked[i].reply->last().kv;
    EXPECT_EQ(kv.device_tokens + kv.host_tokens + kv.recomputed_tokens, kv.prompt_tokens);
    EXPECT_GE(kv.recomputed_tokens, 1);
    all[i].prompt += said + " user says " + std::to_string(turn) + ":";
  }
}

struct Case {
  Layout layout;
  const char* policy;
};

class ReuseTest : public testing::TestWithParam<Case> {};

TEST_P(ReuseTest, SessionsThatTakeTurnsReplyAsIfAlone) {
  Harness h(tight(GetParam().layout, GetParam().policy, 256));
  std::vector<Chat> all = chats(5);
  for (int turn = 0; turn < 5; ++turn) {
    take_turns(h, all, turn);
    if (HasFatalFailure()) return;
  }
  const ServiceStats stats = h.stats();
  EXPECT_GT(stats.bytes_copied_out, 0);
  EXPECT_GT(stats.bytes_copied_in, 0);
  EXPECT_GT(stats.reused_host_tokens, 0);
  EXPECT_GT(stats.evicted_device_blocks, 0);
  h.expect_quiet();
}

TEST_P(ReuseTest, AHostTierThatIsTooSmallLosesTimeOnly) {
  Harness h(tight(GetParam().layout, GetParam().policy, 24));
  std::vector<Chat> all = chats(5);
  for (int turn = 0; turn < 4; ++turn) {
    take_turns(h, all, turn);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(h.stats().evicted_host_blocks, 0);
  EXPECT_GT(h.tier("host").peak_bytes, 0);
  h.expect_quiet();
}

TEST_P(ReuseTest, WithoutAHostTierEvictionLosesTimeOnly) {
  Harness h(tight(GetParam().layout, GetParam().policy, 0));
  std::vector<Chat> all = chats(4);
  for (int turn = 0; turn < 4; ++turn) {
    take_turns(h, all, turn);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(h.stats().bytes_copied_out, 0);
  h.expect_quiet();
}

TEST_P(ReuseTest, FailedCopiesLoseNothingButTime) {
  Harness h(tight(GetParam().layout, GetParam().policy, 256));
  std::vector<Chat> all = chats(5);
  for (int turn = 0; turn < 5; ++turn) {
    h.on_loop([&] {
      h.engine().fake().fail_next_export({base::Code::kInternal, "export broke"});
      h.engine().fake().fail_next_import({base::Code::kInternal, "import broke"});
    });
    take_turns(h, all, turn);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(h.stats().requests_failed, 0);
  h.expect_quiet();
}

TEST_P(ReuseTest, AFailedStepFailsOnlyTheRequestWhoseWorkItWas) {
  Harness h(tight(GetParam().layout, GetParam().policy, 256));
  std::vector<Chat> all = chats(2);
  take_turns(h, all, 0);
  // One of two that run together meets a token that the engine cannot compute, in the middle of its reply.
  constexpr Token kBad = 258;
  h.on_loop([&] { h.engine().fail_steps_with(kBad); });
  GenerateRequest culprit = greedy(all[0].prompt, all[0].session);
  culprit.forced_reply = {'a', 'b', kBad, 'c', 'd'};
  h.gate().allow(0);
  const auto bad = h.submit(culprit);
  const auto good = h.submit(greedy(all[1].prompt, all[1].session));
  h.gate().open();
  ASSERT_TRUE(bad.reply->wait_end());
  ASSERT_TRUE(good.reply->wait_end());
  EXPECT_TRUE(bad.reply->failed());
  EXPECT_EQ(bad.reply->last().error.message, "a token that cannot be computed");
  EXPECT_FALSE(good.reply->failed());
  EXPECT_EQ(good.reply->text(), fresh_reply(all[1].prompt));
  EXPECT_EQ(h.stats().requests_failed, 1);
  h.on_loop([&] { h.engine().fail_steps_with(std::nullopt); });
  all[1].prompt += good.reply->text() + " user says more:";
  take_turns(h, all, 1);
  h.on_loop([&] { h.engine().fake().fail_next_step({base::Code::kInternal, "prefill broke"}); });
  EXPECT_TRUE(h.ask(greedy(all[0].prompt, all[0].session))->failed());
  take_turns(h, all, 2);
  h.expect_quiet();
}

TEST_P(ReuseTest, AnEditedAndAShortenedConversationReplyRight) {
  Harness h(tight(GetParam().layout, GetParam().policy, 256));
  const std::string prompt = chats(1)[0].prompt + std::string(100, 'z');
  h.ask(greedy(prompt, "s"));
  for (const size_t cut : {size_t{150}, size_t{97}, size_t{96}, size_t{16}, size_t{1}, prompt.size()}) {
    const std::string shorter = prompt.substr(0, cut);
    EXPECT_EQ(h.ask(greedy(shorter, "s"))->text(), fresh_reply(shorter)) << cut;
    EXPECT_EQ(h.ask(greedy(shorter + "!edited", "s"))->text(), fresh_reply(shorter + "!edited")) << cut;
  }
  h.expect_quiet();
}

TEST_P(ReuseTest, CancelledPrefillsAndLoadsLeaveRightBlocksBehind) {
  Harness h(tight(GetParam().layout, GetParam().policy, 256));
  std::vector<Chat> all = chats(4);
  take_turns(h, all, 0);
  for (int round = 0; round < 6; ++round) {
    h.gate().allow(round);
    std::vector<Harness::Submitted> asked;
    for (const Chat& chat : all) asked.push_back(h.submit(greedy(chat.prompt + std::string(100, 'w'), chat.session)));
    ASSERT_TRUE(h.gate().wait_held());
    for (const auto& one : asked) h.loop().cancel(one.id);
    h.gate().open();
    h.settle();
    EXPECT_EQ(h.stats().requests_running, 0);
  }
  take_turns(h, all, 1);
  h.expect_quiet();
}

INSTANTIATE_TEST_SUITE_P(LayoutsAndPolicies, ReuseTest,
                         testing::Values(Case{Layout::kUnified, "affinity"}, Case{Layout::kUnified, "lru"}, Case{Layout::kLanes, "affinity"},
                                         Case{Layout::kLanes, "lru"}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return std::string(info.param.layout == Layout::kLanes ? "lanes_" : "unified_") + info.param.policy;
                         });

// --- Preemption: the unified layout runs out of cells ------------------------------------------------------------------------------

class PreemptionTest : public testing::TestWithParam<int64_t> {};

TEST_P(PreemptionTest, BothRepliesAreRightWhenCellsRunOut) {
  Scene scene;
  scene.engine.device_tokens = 256;
  scene.engine.end_one_in = 0;
  scene.host_blocks = GetParam();
  Harness h(std::move(scene));
  Scene alone;
  alone.engine.end_one_in = 0;
  alone.host_blocks = 0;
  Harness reference(std::move(alone));
  h.gate().allow(0);
  std::vector<Harness::Submitted> asked;
  std::vector<std::string> prompts;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(std::string(40, static_cast<char>('a' + i)) + ":");
    asked.push_back(h.submit(greedy(prompts.back(), "s" + std::to_string(i), 150)));
  }
  h.gate().open();
  for (size_t i = 0; i < asked.size(); ++i) {
    ASSERT_TRUE(asked[i].reply->wait_end());
    ASSERT_FALSE(asked[i].reply->failed()) << asked[i].reply->last().error.message;
    EXPECT_EQ(asked[i].reply->last().tokens, 150) << i;
    EXPECT_EQ(asked[i].reply->text(), reference.ask(greedy(prompts[i], "", 150))->text()) << i;
  }
  EXPECT_GT(h.stats().preemptions, 0);
  h.expect_quiet();
}

INSTANTIATE_TEST_SUITE_P(HostBlocks, PreemptionTest, testing::Values(0, 64));

TEST(Preemption, ARequestPreemptedAgainBeforeItGoesOnRepeatsNoToken) {
  // Many replies grow at once on few cells, and prompts are computed in small chunks, so that requests are preempted in every phase.
  Scene scene;
  scene.engine.device_tokens = 320;
  scene.engine.batch_tokens_max = 8;
  scene.engine.block_tokens = 8;
  scene.engine.end_one_in = 0;
  scene.host_blocks = 0;
  Harness h(std::move(scene));
  Scene alone;
  alone.engine.end_one_in = 0;
  Harness reference(std::move(alone));
  h.gate().allow(0);
  std::vector<Harness::Submitted> asked;
  std::vector<std::string> prompts;
  for (int i = 0; i < 7; ++i) {
    prompts.push_back(std::string(20 + 7 * i, static_cast<char>('a' + i)) + ":");
    asked.push_back(h.submit(greedy(prompts.back(), "", 120 - 5 * i)));
  }
  h.gate().open();
  for (size_t i = 0; i < asked.size(); ++i) {
    ASSERT_TRUE(asked[i].reply->wait_end());
    EXPECT_EQ(asked[i].reply->text(), reference.ask(greedy(prompts[i], "", 120 - 5 * static_cast<int32_t>(i)))->text()) << i;
  }
  EXPECT_GT(h.stats().preemptions, 3);
  h.expect_quiet();
}

}  // namespace
}  // namespace kvtide::serving
