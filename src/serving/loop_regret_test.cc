// Live regret: what the loop tells the shadow, and what the shadow makes of it.
#include <gtest/gtest.h>

#include "serving/loop.h"
#include "serving/testing/harness.h"

namespace kvtide::serving {
namespace {

using policy::Regret;
using policy::Rival;

// Sessions that take turns, each with a prompt of its own of about 9 blocks that grows by what was said.
ServiceStats take_turns(Harness& h, int sessions, int turns) {
  std::vector<std::string> prompts;
  for (int i = 0; i < sessions; ++i) prompts.push_back(std::string(120, static_cast<char>('a' + i)) + " begin:");
  for (int turn = 0; turn < turns; ++turn) {
    for (int i = 0; i < sessions; ++i) {
      GenerateRequest request = greedy(prompts[i], "s" + std::to_string(i));
      request.tenant = i % 2 == 0 ? "even" : "odd";
      const auto reply = h.ask(std::move(request));
      EXPECT_FALSE(reply->failed());
      prompts[i] += reply->text() + ":";
    }
  }
  return h.stats();
}

TEST(Regret, WithRoomForAllNobodyWouldHaveReusedMore) {
  Harness h;
  const ServiceStats stats = take_turns(h, 4, 4);
  const Regret& r = stats.regret.all.total;
  EXPECT_EQ(stats.regret.capacity_blocks, 4096 / 16 + 256);
  EXPECT_EQ(stats.regret.rate, 1);
  EXPECT_EQ(r.prompt, stats.prompt_tokens);
  EXPECT_EQ(r.reused, stats.reused_device_tokens + stats.reused_host_tokens);
  EXPECT_GT(r.reused, 0);
  // Replies are blocks too: the next prompt finds them in the shadow as it does in the cache.
  for (const Rival rival : policy::kRivals) {
    EXPECT_EQ(r.lost_to(rival), 0) << policy::rival_name(rival);
    EXPECT_EQ(r.won_over(rival), 0) << policy::rival_name(rival);
  }
}

TEST(Regret, WithTooLittleMemoryItSaysWhatTwiceAsMuchWouldBuy) {
  Scene scene;
  scene.engine.device_tokens = 640;  // 40 blocks, where six sessions want 54 and more
  scene.host_blocks = 0;
  scene.options.policy = "lru";
  Harness h(std::move(scene));
  const ServiceStats stats = take_turns(h, 6, 3);
  const Regret& r = stats.regret.all.total;
  EXPECT_EQ(stats.regret.capacity_blocks, 40);
  EXPECT_GT(stats.evicted_device_blocks, 0);
  EXPECT_GT(r.lost_to(Rival::kLruDouble), 10 * 16);
  EXPECT_GT(r.lost_to(Rival::kOptimal), 0);
  EXPECT_GE(r.hits(Rival::kLruDouble), r.hits(Rival::kOptimal));
  EXPECT_GE(r.hits(Rival::kOptimal), r.hits(Rival::kLru));
  EXPECT_GE(r.hits(Rival::kLru), r.hits(Rival::kLruHalf));
  EXPECT_EQ(stats.regret.all.last_hour, r);  // all of it happened just now

  ASSERT_EQ(stats.regret.tenants.size(), 2U);
  EXPECT_EQ(stats.regret.tenants[0].tenant, "even");
  Regret sum = stats.regret.tenants[0].total;
  sum += stats.regret.tenants[1].total;
  EXPECT_EQ(sum, r);
}

TEST(Regret, ARequestThatIsPreemptedIsComparedOnce) {
  Scene scene;
  scene.engine.device_tokens = 256;
  scene.engine.end_one_in = 0;
  scene.host_blocks = 0;
  Harness h(std::move(scene));
  h.gate().allow(0);
  std::vector<Harness::Submitted> asked;
  for (int i = 0; i < 3; ++i) asked.push_back(h.submit(greedy(std::string(40, static_cast<char>('a' + i)), "", 150)));
  h.gate().open();
  for (const Harness::Submitted& one : asked) ASSERT_TRUE(one.reply->wait_end());
  const ServiceStats stats = h.stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_EQ(stats.regret.all.total.prompt, stats.prompt_tokens);
}

}  // namespace
}  // namespace kvtide::serving
