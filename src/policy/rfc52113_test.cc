#include "policy/rfc52113.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "policy/victim_queue.h"

namespace kvtide::policy {
namespace {

using base::kSecond;
using base::SlotId;
using base::TimeNs;

class Deadlines final : public Forecasts {
 public:
  Forecast forecast(BranchId branch, TimeNs) const override {
    Forecast f;
    const auto it = until.find(branch.value);
    if (it != until.end()) f.protected_until_ns = it->second;
    return f;
  }
  std::map<uint32_t, TimeNs> until;
};

struct Rfc52113 : ::testing::Test {
  index::BlockIndex blocks;
  Deadlines deadlines;
  CostModel costs;
  std::unique_ptr<EvictionPolicy> policy = make_rfc52113({blocks, deadlines, costs, 64, 1 << 20, true});
  VictimQueue queue{blocks, *policy, Tier::kHost};
  uint8_t names = 0;

  BlockId host_block(BlockId parent, TimeNs used_ns, std::vector<uint32_t> claimants = {}) {
    index::BlockKey key{};
    key[0] = ++names;
    const BlockId id = blocks.ensure(parent, key);
    blocks.add_copy(id, Tier::kHost, SlotId(names));
    blocks.touch(id, used_ns, false);
    for (uint32_t branch : claimants) blocks.claim(id, BranchId(branch));
    queue.note(id, used_ns);
    return id;
  }
  BlockId evict(TimeNs now_ns) {
    const auto victim = queue.best(now_ns);
    if (!victim) return {};
    blocks.remove_copy(victim->block, Tier::kHost);
    const BlockId parent = blocks.at(victim->block).parent;
    if (parent.valid()) queue.note(parent, now_ns);
    return victim->block;
  }
};

TEST_F(Rfc52113, UnclaimedGoesBeforeClaimedBeforeProtectedAndInEachTheLongestUnused) {
  deadlines.until[1] = 100 * kSecond;
  const BlockId c_old = host_block({}, 1 * kSecond, {1});
  const BlockId b_old = host_block({}, 2 * kSecond, {2});
  const BlockId a_old = host_block({}, 3 * kSecond);
  const BlockId c_new = host_block({}, 4 * kSecond, {1});
  const BlockId b_new = host_block({}, 5 * kSecond, {2});
  const BlockId a_new = host_block({}, 6 * kSecond);
  for (BlockId expected : {a_old, a_new, b_old, b_new, c_old, c_new}) EXPECT_EQ(evict(10 * kSecond), expected);
  EXPECT_FALSE(queue.best(10 * kSecond).has_value());
}

TEST_F(Rfc52113, WhenADeadlinePassesTheOrderIsRightAtThatInstantWithoutACall) {
  deadlines.until = {{1, 20 * kSecond}, {2, 30 * kSecond}};
  const BlockId one = host_block({}, 1 * kSecond, {1});
  const BlockId two = host_block({}, 2 * kSecond, {2});
  const BlockId claimed = host_block({}, 3 * kSecond, {3});
  EXPECT_EQ(queue.best(20 * kSecond - 1)->block, claimed);
  EXPECT_EQ(queue.best(20 * kSecond)->block, one);
  EXPECT_EQ(evict(20 * kSecond), one);
  EXPECT_EQ(queue.best(30 * kSecond - 1)->block, claimed);
  EXPECT_EQ(queue.best(30 * kSecond)->block, two);
}

TEST_F(Rfc52113, ASharedBlockHasTheLatestDeadlineOfItsClaims) {
  deadlines.until = {{1, 20 * kSecond}, {2, 40 * kSecond}};
  const BlockId shared = host_block({}, 1 * kSecond, {1, 2, 3});
  const BlockId claimed = host_block({}, 5 * kSecond, {3});
  EXPECT_EQ(queue.best(25 * kSecond)->block, claimed);
  EXPECT_EQ(queue.best(40 * kSecond)->block, shared);
}

TEST_F(Rfc52113, AClaimThatEndsTakesItsDeadlineAlongAndGivesItToNobody) {
  deadlines.until = {{1, 100 * kSecond}, {2, 20 * kSecond}};
  const BlockId shared = host_block({}, 1 * kSecond, {1, 2});
  const BlockId claimed = host_block({}, 5 * kSecond, {3});
  blocks.release(shared, BranchId(1));
  queue.note(shared, 6 * kSecond);
  EXPECT_EQ(queue.best(19 * kSecond)->block, claimed);
  EXPECT_EQ(queue.best(20 * kSecond)->block, shared);
}

TEST_F(Rfc52113, UseDoesNotRenewAndARequestDoes) {
  deadlines.until[1] = 20 * kSecond;
  const BlockId one = host_block({}, 1 * kSecond, {1});
  const BlockId claimed = host_block({}, 30 * kSecond, {2});
  blocks.touch(one, 19 * kSecond, true);
  EXPECT_EQ(queue.best(31 * kSecond)->block, one);
  deadlines.until[1] = 60 * kSecond;
  EXPECT_EQ(queue.best(32 * kSecond)->block, claimed);
  EXPECT_EQ(queue.best(60 * kSecond)->block, one);
}

TEST_F(Rfc52113, ABlockIdThatIsUsedAgainStartsWithoutADeadline) {
  deadlines.until[1] = 100 * kSecond;
  const BlockId old = host_block({}, 1 * kSecond, {1});
  ASSERT_EQ(queue.best(2 * kSecond)->block, old);
  blocks.release(old, BranchId(1));
  blocks.remove_copy(old, Tier::kHost);
  blocks.sweep(old);
  const BlockId fresh = host_block({}, 50 * kSecond);
  ASSERT_EQ(fresh, old);
  const BlockId claimed = host_block({}, 3 * kSecond, {2});
  EXPECT_EQ(evict(60 * kSecond), fresh);
  EXPECT_EQ(evict(60 * kSecond), claimed);
}

TEST_F(Rfc52113, NoBlockIsInAHigherClassThanTheOneBeforeIt) {
  deadlines.until[1] = 100 * kSecond;
  const BlockId head = host_block({}, 1 * kSecond, {1, 2});
  const BlockId mine = host_block(head, 1 * kSecond, {1});
  const BlockId other = host_block(head, 2 * kSecond, {2});
  const BlockId nobody = host_block(other, 3 * kSecond);
  for (BlockId expected : {nobody, other, mine, head}) EXPECT_EQ(evict(10 * kSecond), expected);
}

TEST_F(Rfc52113, TheHeapAgreesWithAScanUnderRandomClaimsUsesAndDeadlines) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    base::Random random(seed);
    index::BlockIndex all;
    deadlines.until.clear();
    const auto ranked = make_rfc52113({all, deadlines, costs, 64, 1 << 20, true});
    VictimQueue heap(all, *ranked, Tier::kHost);
    TimeNs now = kSecond;
    std::vector<BlockId> ids;
    for (uint8_t n = 0; n < 60; ++n) {
      index::BlockKey key{};
      key[0] = n;
      ids.push_back(all.ensure(n % 3 == 0 ? BlockId{} : ids[random.below(ids.size())], key));
      all.add_copy(ids.back(), Tier::kHost, SlotId(n));
      all.touch(ids.back(), now + n, false);
    }
    for (BlockId id : ids) heap.note(id, now);
    for (int step = 0; step < 400; ++step) {
      now += static_cast<TimeNs>(random.below(3 * kSecond));
      const BlockId id = ids[random.below(ids.size())];
      const auto branch = static_cast<uint32_t>(random.below(12));
      switch (random.below(4)) {
        case 0: all.claim(id, BranchId(branch)); break;
        case 1:
          all.release(id, BranchId(branch));
          heap.note(id, now);
          break;
        case 2: all.touch(id, now, true); break;
        default: deadlines.until[branch] = std::max(deadlines.until[branch], now + static_cast<TimeNs>(random.below(60 * kSecond)));
      }
      // What the heap finds by itself, before anything is rebuilt.
      double worst = -1e300;
      all.for_each([&](BlockId leaf) {
        if (all.at(leaf).copy(Tier::kHost).children == 0) worst = std::max(worst, ranked->rank(leaf, Tier::kHost, now));
      });
      ASSERT_EQ(heap.best(now)->rank.value, worst);
      if (step % 100 == 0) heap.check_invariants(now);
    }
  }
}

}  // namespace
}  // namespace kvtide::policy
