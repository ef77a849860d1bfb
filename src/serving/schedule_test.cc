#include "serving/schedule.h"

#include <gtest/gtest.h>

namespace kvtide::serving {
namespace {

constexpr base::DurationNs kS = base::kSecond;

TEST(Schedule, KnowsItsNames) {
  EXPECT_EQ(parse_schedule("fcfs"), Schedule::kFcfs);
  EXPECT_EQ(parse_schedule("affinity"), Schedule::kAffinity);
  EXPECT_EQ(parse_schedule("luck"), std::nullopt);
}

TEST(Schedule, LessWorkGoesFirstUntilWaitingMakesUpForIt) {
  const Place cold{.since_ns = 0, .work_ns = 10.0 * kS};
  EXPECT_TRUE(goes_before({.since_ns = 9 * kS, .work_ns = 0.5 * kS}, cold, 9 * kS));
  EXPECT_FALSE(goes_before({.since_ns = 10 * kS, .work_ns = 0.5 * kS}, cold, 10 * kS));
}

TEST(Schedule, EqualPlacesKeepTheirOrder) {
  const Place one{.since_ns = 3, .work_ns = 5};
  EXPECT_FALSE(goes_before(one, one, 10));
}

TEST(Schedule, WhoIsOverdueIsPassedByNobodyButThoseOverdueBefore) {
  const Place cold{.since_ns = 0, .work_ns = 10.0 * kS};
  EXPECT_FALSE(overdue(cold, 25 * kS));
  EXPECT_TRUE(overdue(cold, 25 * kS + 1));
  const Place early{.since_ns = 9 * kS, .work_ns = 0};
  EXPECT_TRUE(goes_before(early, cold, 13 * kS));
  EXPECT_TRUE(goes_before(cold, early, 26 * kS));
}

TEST(Schedule, WhoGaveWayOnceGoesFirst) {
  EXPECT_TRUE(goes_before({.since_ns = 90 * kS, .work_ns = 50.0 * kS, .was_running = true}, {.since_ns = 0, .work_ns = 0}, 100 * kS));
}

}  // namespace
}  // namespace kvtide::serving
