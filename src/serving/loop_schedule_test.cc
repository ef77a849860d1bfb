// Who goes next: short resumes before cold prompts, siblings together behind their trunk, nobody passed over for ever, decoders not stalled.
#include <gtest/gtest.h>

#include "serving/loop.h"
#include "serving/testing/harness.h"

namespace kvtide::serving {
namespace {

Scene one_at_a_time(Schedule schedule) {
  Scene scene;
  scene.options.schedule = schedule;
  scene.options.parallel = 1;
  return scene;
}

// Names of requests in the order of their first tokens. Loop thread, read after the ends.
class FirstTokens {
 public:
  Harness::Submitted submit(Harness& h, const std::string& name, GenerateRequest request) {
    return h.submit(std::move(request), [this, name](const StreamEvent& event) {
      if (event.kind == StreamEvent::Kind::kToken && event.tokens == 1) order_ += name + " ";
    });
  }
  const std::string& order() const { return order_; }

 private:
  std::string order_;
};

GenerateRequest short_reply(const std::string& prompt, const std::string& session) {
  GenerateRequest request = greedy(prompt, session, 4);
  request.sampling.ignore_eos = true;
  return request;
}

class ScheduleTest : public testing::TestWithParam<Schedule> {
 protected:
  bool affinity() const { return GetParam() == Schedule::kAffinity; }
};

TEST_P(ScheduleTest, ASessionThatComesBackGoesBeforeAColdPromptThatWaits) {
  for (const bool offloaded : {false, true}) {
    // Given a session on the device, or in the host tier, and a server that is busy
    Harness h(one_at_a_time(GetParam()));
    const std::string context(200, 'w');
    h.ask(short_reply(context, "warm"));
    if (offloaded) h.manage_one(hint::Verb::kOffload, "warm");
    FirstTokens first;
    h.gate().allow(0);
    const auto running = first.submit(h, "running", short_reply("running", ""));
    ASSERT_TRUE(h.gate().wait_held());
    // When a cold prompt comes, and then the next turn of the session
    const auto cold = first.submit(h, "cold", short_reply(std::string(400, 'c'), "cold"));
    const auto warm = first.submit(h, "warm", short_reply(context, "warm"));
    h.gate().open();
    for (const auto& one : {running, cold, warm}) ASSERT_TRUE(one.reply->wait_end());
    // Then the session goes first, and reuses what was there
    EXPECT_EQ(first.order(), affinity() ? "running warm cold " : "running cold warm ") << offloaded;
    EXPECT_GE(warm.reply->last().kv.device_tokens + warm.reply->last().kv.host_tokens, 190);
    h.expect_quiet();
  }
}

TEST_P(ScheduleTest, AShortResumeDoesNotWaitBehindTheComputingOfALongPrompt) {
  // Given a prompt that takes seven steps, and is in its second
  Scene scene;
  scene.options.schedule = GetParam();
  Harness h(std::move(scene));
  const std::string context(200, 'w');
  h.ask(short_reply(context, "warm"));
  FirstTokens first;
  h.gate().allow(1);
  const auto cold = first.submit(h, "cold", short_reply(std::string(400, 'c'), "cold"));
  ASSERT_TRUE(h.gate().wait_held());
  // When a session comes back
  const auto warm = first.submit(h, "warm", short_reply(context, "warm"));
  h.gate().open();
  ASSERT_TRUE(cold.reply->wait_end());
  ASSERT_TRUE(warm.reply->wait_end());
  // Then its first token comes first
  EXPECT_EQ(first.order(), affinity() ? "warm cold " : "cold warm ");
  h.expect_quiet();
}

TEST_P(ScheduleTest, NobodyIsPassedOverForEverHoweverManyShortPromptsCome) {
  for (const int32_t parallel : {1, 3}) {  // passed in line; passed in the computing of prompts
    // Given short prompts that never stop coming, each as long as a step has room for
    Scene scene = one_at_a_time(GetParam());
    scene.options.parallel = parallel;
    scene.engine.device_tokens = 1 << 16;
    Harness h(std::move(scene));
    int sent = 0;
    const auto next = [&] { return h.submit(short_reply(std::to_string(sent++) + std::string(61, 's'), "")); };
    h.gate().allow(0);
    std::vector<Harness::Submitted> shorts;
    for (int i = 0; i < 4; ++i) shorts.push_back(next());
    ASSERT_TRUE(h.gate().wait_held());
    // When a cold prompt comes
    const auto cold = h.submit(short_reply(std::string(500, 'c'), "cold"));
    int steps = 0;
    for (; steps < 400 && !cold.reply->ended(); ++steps) {
      h.gate().allow(1);
      ASSERT_TRUE(h.gate().wait_held());
      for (auto& one : shorts) {
        if (one.reply->ended()) one = next();
      }
    }
    // Then it is served within the bound, here by the credit for its waiting alone
    EXPECT_LT(steps, 400);
    h.gate().open();
    for (const auto& one : shorts) ASSERT_TRUE(one.reply->wait_end());
    ASSERT_TRUE(cold.reply->wait_end());
    const double work_ms = 500 * 0.1;
    EXPECT_LE(cold.reply->last().kv.queue_ms, kPassedOverWorks * work_ms + static_cast<double>(kPassedOverNs) * 1e-6);
    h.expect_quiet();
  }
}

TEST_P(ScheduleTest, APromptStallsDecodersForTheStatedTimeAndOneMinimalChunkAtMost) {
  // Given somebody who decodes
  Scene scene;
  scene.options.schedule = GetParam();
  scene.options.decode_stall_ns = 3 * base::kMillisecond;  // thirty tokens
  scene.engine.batch_tokens_max = 512;
  Harness h(std::move(scene));
  h.ask(short_reply(std::string(64, 'm'), ""));  // what a token costs is known
  GenerateRequest talk = greedy("talk", "", 200);
  talk.sampling.ignore_eos = true;
  h.gate().allow(3);
  const auto decoding = h.submit(talk);
  ASSERT_TRUE(h.gate().wait_held());
  // When two long prompts are computed beside it
  const auto one = h.submit(short_reply(std::string(450, 'c'), ""));
  const auto two = h.submit(short_reply(std::string(400, 'd'), ""));
  h.gate().open();
  for (const auto& each : {decoding, one, two}) ASSERT_TRUE(each.reply->wait_end());
  // Then no step takes longer, and the time is used
  h.on_loop([&] {
    int64_t longest = 0;
    for (const TestEngine::Step& step : h.engine().steps()) {
      if (step.items > 1) longest = std::max(longest, step.tokens);
    }
    EXPECT_LE(longest, 30 + 16 + 3);
    EXPECT_GE(longest, 25);
  });
  h.expect_quiet();
}

const std::string kTrunk(192, 't');

struct Family {
  FirstTokens first;
  Harness::Submitted leader;
  std::vector<Harness::Submitted> children;
};

// A leader is in the middle of the trunk, held at the gate; three siblings and a stranger wait.
void spawn(Harness& h, Family& family, GenerateRequest leader) {
  h.gate().allow(1);
  family.leader = family.first.submit(h, "leader", std::move(leader));
  ASSERT_TRUE(h.gate().wait_held());
  for (const char* name : {"a", "b", "c"}) family.children.push_back(family.first.submit(h, name, short_reply(kTrunk + name, name)));
}

int32_t recomputed(const Family& family) {
  int32_t sum = 0;
  for (const auto& child : family.children) sum += child.reply->last().kv.recomputed_tokens;
  return sum;
}

TEST_P(ScheduleTest, SiblingsWaitForTheirTrunkAndAreThenAdmittedTogetherInOrder) {
  Scene scene;
  scene.options.schedule = GetParam();
  Harness h(std::move(scene));
  Family family;
  spawn(h, family, short_reply(kTrunk + std::string(200, 'l'), "leader"));
  // When the trunk is ready, long before the leader's own part
  h.gate().open();
  for (const auto& child : family.children) ASSERT_TRUE(child.reply->wait_end());
  ASSERT_TRUE(family.leader.reply->wait_end());
  // Then each computes only what is its own, and none waits for the other
  EXPECT_LT(recomputed(family), 3 * 32);
  EXPECT_EQ(family.first.order(), affinity() ? "a b c leader " : "leader a b c ");
  for (const auto& child : family.children) {
    EXPECT_LE(child.reply->last().kv.queue_ms - family.children[0].reply->last().kv.queue_ms, 0.1);
  }
  h.expect_quiet();
}

TEST_P(ScheduleTest, SiblingsOfALeaderThatIsCancelledOrFailsAreServed) {
  for (const bool fails : {false, true}) {
    Scene scene;
    scene.options.schedule = GetParam();
    Harness h(std::move(scene));
    constexpr Token kBad = 258;
    h.on_loop([&] { h.engine().fail_steps_with(kBad); });
    GenerateRequest leader = short_reply(kTrunk, "leader");
    // The bad token is in the third step, before the trunk is done.
    if (fails) leader.prompt[150] = kBad;
    Family family;
    spawn(h, family, std::move(leader));
    if (!fails) h.loop().cancel(family.leader.id);
    h.gate().open();
    for (const auto& child : family.children) {
      ASSERT_TRUE(child.reply->wait_end());
      EXPECT_FALSE(child.reply->failed());
    }
    if (fails) {
      EXPECT_TRUE(family.leader.reply->wait_end() && family.leader.reply->failed());
    }
    // One of them computed the trunk, and the others took it from there.
    EXPECT_LE(recomputed(family), 193 + 2 * 32);
    h.expect_quiet();
  }
}

TEST_P(ScheduleTest, WhoIsNotHeldGoesAroundManyThatAre) {
  Scene scene;
  scene.options.schedule = GetParam();
  scene.options.queue_max = 200;
  Harness h(std::move(scene));
  Family family;
  spawn(h, family, short_reply(kTrunk + std::string(300, 'l'), "leader"));
  for (int i = 0; i < 100; ++i) family.children.push_back(h.submit(short_reply(kTrunk + "#" + std::to_string(i), "")));
  const auto stranger = h.submit(short_reply(std::string(400, 's'), ""));
  h.gate().open();
  ASSERT_TRUE(stranger.reply->wait_end());
  for (const auto& child : family.children) ASSERT_TRUE(child.reply->wait_end());
  ASSERT_TRUE(family.leader.reply->wait_end());
  // Then one that shares nothing is admitted before the trunk is ready, though it has the most work of all
  for (const auto& child : family.children) EXPECT_LT(stranger.reply->last().kv.queue_ms, child.reply->last().kv.queue_ms);
  EXPECT_LT(recomputed(family), 103 * 32);
  h.expect_quiet();
}

TEST_P(ScheduleTest, AdmissionsThatEvictAreSpreadOverTurnsWhileSomebodyDecodes) {
  // Given three idle sessions in lanes that were not written back, and somebody who decodes
  Scene scene;
  scene.options.schedule = GetParam();
  scene.options.copy_budget_ns = 0;
  scene.engine.layout = engine::Layout::kLanes;
  scene.engine.seqs = 4;
  Harness h(std::move(scene));
  GenerateRequest talk = greedy("talk", "", 400);
  talk.sampling.ignore_eos = true;
  h.gate().allow(1);
  const auto decoding = h.submit(talk);
  ASSERT_TRUE(h.gate().wait_held());
  std::vector<Harness::Submitted> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(h.submit(short_reply(std::string(160, static_cast<char>('a' + i)), std::to_string(i))));
  h.gate().allow(60);
  ASSERT_TRUE(h.gate().wait_held());
  for (const auto& one : sessions) ASSERT_TRUE(one.reply->ended());
  // When three new ones come at once
  std::vector<Harness::Submitted> cold;
  for (int i = 0; i < 3; ++i) cold.push_back(h.submit(short_reply(std::string(100, static_cast<char>('x' + i)), "")));
  h.gate().open();
  for (const auto& one : cold) ASSERT_TRUE(one.reply->wait_end());
  ASSERT_TRUE(decoding.reply->wait_end());
  // Then no step waits for more than one eviction
  h.on_loop([&] {
    EXPECT_GE(h.engine().exported_between_steps_max(), 10);
    EXPECT_LE(h.engine().exported_between_steps_max(), 11);
  });
  h.expect_quiet();
}

TEST(Loop, OnlyTheTokensThatPenaltiesSeeAreToldToTheSampler) {
  Harness h;
  GenerateRequest request = short_reply(std::string(300, 'p'), "");
  request.sampling.repeat_last_n = 20;
  h.ask(request);
  h.on_loop([&] { EXPECT_EQ(h.engine().prompt_tokens_accepted(), 20); });
}

TEST(Loop, ClientsCannotSendHintIdsThatTheServerMakes) {
  Harness h;
  h.ask(short_reply(std::string(100, 'p'), "s"));
  const hint::Receipt refused = h.manage_one(hint::Verb::kRetain, "s", "kv-1");
  EXPECT_EQ(refused.status, hint::Outcome::kRejected);
  EXPECT_EQ(h.find_receipt("kv-1"), std::nullopt);
  const hint::Receipt made = h.manage_one(hint::Verb::kRetain, "s");
  EXPECT_EQ(made.hint_id, "kv-1");
  EXPECT_EQ(made.status, hint::Outcome::kApplied);
  // A repeated one is answered as before, and does nothing.
  EXPECT_EQ(h.manage_one(hint::Verb::kEvict, "s", "kv-1").status, hint::Outcome::kDuplicate);
}

TEST(Loop, AnEvictReceiptSaysWhereItFreed) {
  Harness h;
  h.ask(short_reply(std::string(100, 'p'), "s"));
  h.wait_written_back("s");
  const hint::Receipt receipt = h.manage_one(hint::Verb::kEvict, "s");
  EXPECT_EQ(receipt.from, "device,host");
  EXPECT_GT(receipt.blocks, 0);
}

INSTANTIATE_TEST_SUITE_P(Schedules, ScheduleTest, testing::Values(Schedule::kFcfs, Schedule::kAffinity),
                         [](const auto& info) { return info.param == Schedule::kFcfs ? "fcfs" : "affinity"; });

}  // namespace
}  // namespace kvtide::serving
