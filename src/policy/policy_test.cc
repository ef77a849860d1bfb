#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "policy/victim_queue.h"

namespace kvtide::policy {
namespace {

using base::kSecond;
using base::SlotId;

class FixedForecasts final : public Forecasts {
 public:
  Forecast forecast(BranchId branch, base::TimeNs) const override { return {1 / waits.at(branch.value), 1}; }
  std::map<uint32_t, double> waits;
};

struct Fixture : ::testing::Test {
  index::BlockIndex blocks;
  FixedForecasts forecasts;
  CostModel costs;
  PolicyView view{blocks, forecasts, costs, 64, 1 << 20, true};

  BlockId host_block(BlockId parent, uint8_t name, base::TimeNs used_ns) {
    index::BlockKey key{};
    key[0] = name;
    const BlockId id = blocks.ensure(parent, key);
    blocks.add_copy(id, Tier::kHost, SlotId(name));
    blocks.touch(id, used_ns, false);
    return id;
  }
};

TEST_F(Fixture, LruGivesUpTheLongestUnusedLeafAndTailBeforeHead) {
  auto policy = make_policy("lru", view).value();
  VictimQueue queue(blocks, *policy, Tier::kHost);
  const BlockId a = host_block({}, 1, 10);
  const BlockId a2 = host_block(a, 2, 10);
  const BlockId b = host_block({}, 3, 20);
  for (BlockId id : {a, a2, b}) queue.note(id, 30);
  ASSERT_EQ(queue.best(30)->block, a2);
  blocks.remove_copy(a2, Tier::kHost);
  blocks.sweep(a2);
  queue.note(a, 30);
  EXPECT_EQ(queue.best(30)->block, a);
  blocks.touch(a, 40, true);
  EXPECT_EQ(queue.best(50)->block, b);
}

TEST_F(Fixture, AffinityGivesUpTheUnclaimedThenTheOneWantedLast) {
  auto policy = make_policy("affinity", view).value();
  VictimQueue queue(blocks, *policy, Tier::kHost);
  const BlockId soon = host_block({}, 1, 0);
  const BlockId late = host_block({}, 2, 0);
  const BlockId nobody = host_block({}, 3, 5 * kSecond);
  blocks.claim(soon, BranchId(1));
  blocks.claim(late, BranchId(2));
  forecasts.waits = {{1, 2.0}, {2, 20.0}};
  for (BlockId id : {soon, late, nobody}) queue.note(id, 10 * kSecond);
  EXPECT_EQ(queue.best(10 * kSecond)->block, nobody);
  blocks.remove_copy(nobody, Tier::kHost);
  EXPECT_EQ(queue.best(10 * kSecond)->block, late);
  // The session that was thought late turns out to be next.
  forecasts.waits = {{1, 50.0}, {2, 1.0}};
  EXPECT_EQ(queue.best(12 * kSecond)->block, soon);
}

TEST_F(Fixture, OfSpareCopiesTheOneOfLeastValueGoesFirst) {
  for (const char* name : {"lru", "affinity"}) {
    auto policy = make_policy(name, view).value();
    VictimQueue queue(blocks, *policy, Tier::kHost);
    const BlockId wanted = host_block({}, 20, 200);
    const BlockId unwanted = host_block({}, 21, 100);
    blocks.claim(wanted, BranchId(1));
    forecasts.waits = {{1, 2.0}};
    for (BlockId id : {wanted, unwanted}) {
      blocks.add_copy(id, Tier::kDevice, {});
      queue.note(id, kSecond);
    }
    EXPECT_EQ(queue.best(kSecond)->block, unwanted) << name;
    queue.check_invariants(kSecond);
    for (BlockId id : {wanted, unwanted}) {
      blocks.remove_copy(id, Tier::kDevice);
      blocks.remove_copy(id, Tier::kHost);
    }
  }
}

TEST_F(Fixture, AHostCopyOfABlockThatIsOnTheDeviceTooGoesFirst) {
  for (const char* name : {"lru", "affinity"}) {
    auto policy = make_policy(name, view).value();
    VictimQueue queue(blocks, *policy, Tier::kHost);
    const BlockId spare = host_block({}, 10, 100);
    const BlockId only = host_block({}, 11, 1);
    blocks.add_copy(spare, Tier::kDevice, {});
    blocks.claim(spare, BranchId(1));
    forecasts.waits = {{1, 1.0}};
    queue.note(spare, 200);
    queue.note(only, 200);
    EXPECT_EQ(queue.best(200)->block, spare) << name;
    blocks.release(spare, BranchId(1));
    blocks.remove_copy(spare, Tier::kDevice);
    blocks.remove_copy(spare, Tier::kHost);
    blocks.remove_copy(only, Tier::kHost);
    blocks.sweep(spare);
    blocks.sweep(only);
  }
}

TEST_F(Fixture, ALeasedCopyIsNeverAVictim) {
  auto policy = make_policy("lru", view).value();
  VictimQueue queue(blocks, *policy, Tier::kHost);
  const BlockId a = host_block({}, 1, 10);
  queue.note(a, 20);
  blocks.lease(a, Tier::kHost);
  EXPECT_FALSE(queue.best(20).has_value());
  blocks.unlease(a, Tier::kHost);
  queue.note(a, 20);
  EXPECT_TRUE(queue.best(20).has_value());
}

TEST_F(Fixture, TheHeapAgreesWithAScanUnderRandomChange) {
  auto policy = make_policy("affinity", view).value();
  VictimQueue queue(blocks, *policy, Tier::kHost);
  base::Random random(3);
  std::vector<BlockId> ids;
  for (uint8_t n = 0; n < 100; ++n) {
    ids.push_back(host_block(n % 3 == 0 || ids.empty() ? BlockId{} : ids[random.below(ids.size())], n, n));
    forecasts.waits[n] = 1.0 + n;
  }
  for (int step = 0; step < 500; ++step) {
    const auto now = static_cast<base::TimeNs>(step) * kSecond / 10;
    const BlockId id = ids[random.below(ids.size())];
    if (random.below(2) == 0) {
      blocks.claim(id, BranchId(static_cast<uint32_t>(random.below(100))));
    } else {
      blocks.release(id, BranchId(static_cast<uint32_t>(random.below(100))));
    }
    queue.note(id, now);
    if (step % 50 == 0) queue.check_invariants(now);
  }
}

TEST(Policies, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  index::BlockIndex blocks;
  FixedForecasts forecasts;
  CostModel costs;
  const auto made = make_policy("mru", {blocks, forecasts, costs, 64, 1, true});
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("lru, affinity"), std::string::npos);
}

TEST(CostModel, LearnsThatDepthMakesPrefillDearer) {
  CostModel costs;
  for (int i = 0; i < 50; ++i) {
    const int64_t depth = (i % 10) * 1000;
    costs.note_prefill(100, depth, static_cast<base::DurationNs>(100 * (1e6 + 100.0 * static_cast<double>(depth + 50))));
  }
  EXPECT_NEAR(costs.prefill_ns(100, 0) / 100, 1e6, 5e4);
  EXPECT_NEAR(costs.prefill_ns(100, 10000) / 100, 2e6, 1e5);
}

TEST(CostModel, LoadsUnlessMeasurementSaysRecomputingIsFaster) {
  CostModel costs;
  EXPECT_TRUE(costs.load_is_faster(1 << 20, 64, 0));
  costs.note_prefill(64, 0, 64 * 1000);
  costs.note_load(1 << 20, kSecond);
  EXPECT_FALSE(costs.load_is_faster(1 << 20, 64, 0));
}

}  // namespace
}  // namespace kvtide::policy
