// Many threads on one loop. Run under a thread sanitizer this also shows what is not guarded.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "serving/loop.h"
#include "serving/testing/harness.h"

namespace kvtide::serving {
namespace {

class ThreadsTest : public testing::TestWithParam<engine::Layout> {};

TEST_P(ThreadsTest, SubmitsAndCancelsFromManyThreadsLeaveNothingBehind) {
  Scene scene;
  scene.engine.layout = GetParam();
  scene.engine.seqs = 3;
  scene.engine.device_tokens = 700;
  scene.host_blocks = 48;
  scene.options.queue_max = 64;
  scene.options.parallel = 3;
  Harness h(std::move(scene));
  std::vector<std::string> prompts;
  std::vector<std::string> expected;
  for (int i = 0; i < 8; ++i) {
    prompts.push_back(std::string(80 + 10 * i, static_cast<char>('m' + i % 3)) + std::to_string(i) + ":");
    expected.push_back(fresh_reply(prompts.back()));
  }
  std::atomic<int> wrong{0};
  std::atomic<int> served{0};
  std::atomic<int> lost{0};
  auto client = [&](uint64_t seed) {
    base::Random random(seed);
    for (int i = 0; i < 25; ++i) {
      const size_t which = random.next() % prompts.size();
      const auto reply = std::make_shared<Collector>();
      const bool cancels = random.next() % 3 == 0;
      const auto id = h.loop().submit(greedy(prompts[which], "s" + std::to_string(which)), reply);
      if (!id) continue;  // the line is full
      (void)h.loop().tokenize_prompt("default", prompts[which]);
      if (cancels) {
        if (random.next() % 2 == 0) (void)reply->wait_tokens(static_cast<int32_t>(random.next() % 10));
        h.loop().cancel(*id);
        continue;
      }
      if (!reply->wait_end()) {
        ++lost;
        continue;
      }
      ++served;
      if (reply->failed() || reply->text() != expected[which] || reply->ends() != 1) ++wrong;
      h.loop().note_tool_calls(*id, {"tool"});
    }
  };
  auto watcher = [&] {
    for (int i = 0; i < 50; ++i) {
      (void)h.loop().stats([](ServiceStats) {});
      (void)h.loop().tiers([](std::vector<TierSnapshot>) {});
      (void)h.loop().sessions({}, [](std::vector<SessionSnapshot>, size_t) {});
      (void)h.loop().find_receipt("default", "none", [](std::optional<hint::Receipt>) {});
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) threads.emplace_back(client, t + 1);
  threads.emplace_back(watcher);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(lost, 0);
  EXPECT_GT(served, 20);
  h.expect_quiet();
  const ServiceStats stats = h.stats();
  EXPECT_EQ(stats.requests_failed, 0);
}

TEST_P(ThreadsTest, SubmitsThatRaceWithStopAreServedFailedOrRefused) {
  for (int round = 0; round < 10; ++round) {
    Scene scene;
    scene.engine.layout = GetParam();
    Harness h(std::move(scene));
    std::atomic<int> taken{0};
    std::vector<std::shared_ptr<Collector>> replies[3];
    std::vector<std::thread> threads;
    for (auto& mine : replies) {
      threads.emplace_back([&h, &mine, &taken] {
        for (int i = 0; i < 30; ++i) {
          auto reply = std::make_shared<Collector>();
          if (!h.loop().submit(greedy("race " + std::to_string(i), "", 4), reply)) continue;
          ++taken;
          mine.push_back(std::move(reply));
        }
      });
    }
    while (taken == 0) std::this_thread::yield();
    h.loop().stop(std::chrono::milliseconds(round));
    for (std::thread& t : threads) t.join();
    // Whoever was taken has heard the end, exactly once.
    for (const auto& mine : replies) {
      for (const auto& reply : mine) EXPECT_EQ(reply->ends(), 1U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ThreadsTest, testing::Values(engine::Layout::kUnified, engine::Layout::kLanes),
                         [](const testing::TestParamInfo<engine::Layout>& info) { return info.param == engine::Layout::kLanes ? "lanes" : "unified"; });

}  // namespace
}  // namespace kvtide::serving
