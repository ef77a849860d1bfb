#include "policy/ttl_wheel.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace kvtide::policy {
namespace {

using base::BlockId;
using base::kMillisecond;
using base::kSecond;
using base::TimeNs;

std::vector<uint32_t> fired(TtlWheel& wheel, TimeNs now_ns) {
  std::vector<TtlWheel::Due> due;
  wheel.advance(now_ns, due);
  std::vector<uint32_t> blocks;
  for (const TtlWheel::Due& d : due) blocks.push_back(d.block.value);
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

TEST(TtlWheel, ATimerFiresAtItsInstantOnceAndNotBefore) {
  TtlWheel wheel;
  wheel.arm(BlockId(7), 1, 5 * kSecond);
  EXPECT_TRUE(fired(wheel, 5 * kSecond - 1).empty());
  EXPECT_EQ(fired(wheel, 5 * kSecond), std::vector<uint32_t>{7});
  EXPECT_TRUE(fired(wheel, 50 * kSecond).empty());
  EXPECT_EQ(wheel.armed(), 0U);
}

// The published wheel has 3,600 slots of a second and puts an hour into the present one, where it is found too early and then forgotten.
TEST(TtlWheel, NoDurationFallsIntoThePresentSlotWhateverTheTime) {
  constexpr int64_t kStarts[] = {0, 1, 63, 64, 4095, 262'143, 3'600'000, 16'777'215, 987'654'321};
  constexpr int64_t kDurations[] = {1,       2,         63,        64,        65,         4095,       4096,       4097,       262'143,
                                    262'144, 262'145,   3'599'999, 3'600'000, 3'600'001,  16'777'215, 16'777'216, 16'777'217, 100'000'000};
  for (const int64_t start : kStarts) {
    for (const int64_t ticks : kDurations) {
      TtlWheel wheel;
      const TimeNs from = start * kMillisecond;
      fired(wheel, from);
      wheel.arm(BlockId(0), 1, from + ticks * kMillisecond);
      wheel.check_invariants();
      // Met on the way or passed over in one stride, it fires at its tick.
      for (int64_t t = 1; t < ticks; t = t * 3 + 1) ASSERT_TRUE(fired(wheel, from + t * kMillisecond).empty()) << start << "+" << ticks;
      ASSERT_TRUE(fired(wheel, from + ticks * kMillisecond - 1).empty()) << start << "+" << ticks;
      wheel.check_invariants();
      ASSERT_EQ(fired(wheel, from + ticks * kMillisecond).size(), 1U) << start << "+" << ticks;
      ASSERT_EQ(wheel.armed(), 0U);
    }
  }
}

TEST(TtlWheel, ADeadlineInsideATickCountsToTheEndOfIt) {
  TtlWheel wheel;
  EXPECT_EQ(TtlWheel::round_up(10 * kMillisecond + 1), 11 * kMillisecond);
  EXPECT_EQ(TtlWheel::round_up(10 * kMillisecond), 10 * kMillisecond);
  EXPECT_EQ(TtlWheel::round_up(-5), 0);
  wheel.arm(BlockId(0), 1, 10 * kMillisecond + 1);
  EXPECT_TRUE(fired(wheel, 11 * kMillisecond - 1).empty());
  EXPECT_EQ(fired(wheel, 11 * kMillisecond).size(), 1U);
}

TEST(TtlWheel, RenewalMovesTheTimerAndCancelTakesItOut) {
  TtlWheel wheel;
  wheel.arm(BlockId(1), 1, kSecond);
  wheel.arm(BlockId(2), 1, kSecond);
  wheel.arm(BlockId(1), 1, 3600 * kSecond);
  wheel.cancel(BlockId(2));
  wheel.cancel(BlockId(2));
  wheel.cancel(BlockId(99));
  EXPECT_EQ(wheel.armed(), 1U);
  EXPECT_TRUE(fired(wheel, 3599 * kSecond).empty());
  EXPECT_EQ(fired(wheel, 3600 * kSecond), std::vector<uint32_t>{1});
}

TEST(TtlWheel, AnIdThatIsUsedAgainDoesNotKeepTheOldTimer) {
  TtlWheel wheel;
  wheel.arm(BlockId(3), 1, kSecond);
  wheel.arm(BlockId(3), 2, 60 * kSecond);
  EXPECT_TRUE(fired(wheel, 59 * kSecond).empty());
  std::vector<TtlWheel::Due> due;
  wheel.advance(60 * kSecond, due);
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due[0].epoch, 2U);
}

TEST(TtlWheel, AgreesWithASortedListUnderRandomUse) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    base::Random random(seed);
    TtlWheel wheel;
    std::map<uint32_t, TimeNs> naive;
    TimeNs now = 0;
    for (int step = 0; step < 2000; ++step) {
      const auto id = static_cast<uint32_t>(random.below(50));
      const auto far = static_cast<TimeNs>(random.below(uint64_t{1} << random.below(45)));
      if (random.below(3) > 0) {
        wheel.arm(BlockId(id), 1, now + 1 + far);
        naive[id] = TtlWheel::round_up(now + 1 + far);
      } else if (random.below(2) == 0) {
        wheel.cancel(BlockId(id));
        naive.erase(id);
      } else {
        now += far / 4;
        std::vector<uint32_t> expected;
        std::erase_if(naive, [&](const auto& timer) {
          if (timer.second <= now) expected.push_back(timer.first);
          return timer.second <= now;
        });
        ASSERT_EQ(fired(wheel, now), expected);
      }
      ASSERT_EQ(wheel.armed(), naive.size());
      if (step % 50 == 0) wheel.check_invariants();
    }
  }
}

TEST(TtlWheel, WorkIsBoundedByTheTimersNotByTimeNorByWhatElseIsArmed) {
  TtlWheel wheel;
  constexpr uint32_t kTimers = 20'000;
  for (uint32_t id = 0; id < kTimers; ++id) wheel.arm(BlockId(id), 1, (1 + id % 3600) * kSecond);
  size_t total = 0;
  for (TimeNs now = 0; now <= 3600 * kSecond; now += kSecond) total += fired(wheel, now).size();
  EXPECT_EQ(total, kTimers);
  EXPECT_LE(wheel.filings(), 4U * kTimers);  // at most once a level
  wheel.arm(BlockId(0), 1, 3601 * kSecond);
  const uint64_t before = wheel.filings();
  EXPECT_EQ(fired(wheel, 365 * 24 * 3600 * kSecond).size(), 1U);  // a year in one stride
  EXPECT_LE(wheel.filings() - before, 4U);
  EXPECT_LE(wheel.memory_bytes(), 2 * 24 * kTimers + sizeof(wheel));
}

}  // namespace
}  // namespace kvtide::policy
