#include "policy/return_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace kvtide::policy {
namespace {

TEST(ReturnModel, PeopleTakeLongerThanToolsBeforeAnythingIsLearned) {
  const ReturnModel model;
  EXPECT_GT(model.value(ReturnModel::kTool, 0), 20 * model.value(ReturnModel::kUser, 0));
}

TEST(ReturnModel, APauseThatDragsOnIsWorthLess) {
  const ReturnModel model;
  double last = model.value(ReturnModel::kTool, 0.5);
  for (const double elapsed_s : {5.0, 50.0, 500.0, 5000.0, 50000.0, 500000.0}) {
    const double now = model.value(ReturnModel::kTool, elapsed_s);
    EXPECT_LT(now, last) << elapsed_s;
    last = now;
  }
}

TEST(ReturnModel, AToolThatAlwaysTakesFortySecondsIsWorthMoreShortlyBefore) {
  ReturnModel model;
  const auto build = model.child(ReturnModel::kTool, "build");
  for (int i = 0; i < 300; ++i) model.ended(build, 40, 0);
  EXPECT_GT(model.value(build, 30), 2 * model.value(build, 1));
  EXPECT_NEAR(model.median(build), 45, 20);
  EXPECT_NEAR(model.median(ReturnModel::kTool), 45, 20) << "the parent class learns too";
}

TEST(ReturnModel, FewSamplesLeanOnTheParent) {
  ReturnModel model;
  for (int i = 0; i < 500; ++i) model.ended(ReturnModel::kUser, 100, 0);
  const auto fresh = model.child(ReturnModel::kUser, "t");
  EXPECT_DOUBLE_EQ(model.median(fresh), model.median(ReturnModel::kUser));
  for (int i = 0; i < 200; ++i) model.ended(fresh, 2, 0);
  EXPECT_LT(model.median(fresh), 5);
}

TEST(ReturnModel, PausesThatNeverEndMakeWaitingWorthless) {
  ReturnModel model;
  const auto back = model.child(ReturnModel::kUser, "comes back");
  const auto gone = model.child(ReturnModel::kUser, "stays away");
  for (int i = 0; i < 200; ++i) {
    model.ended(back, 30, 0);
    size_t counted = 0;
    for (double t = 1; t < 20000; t *= 1.3) counted = model.survived(gone, t, counted);
  }
  EXPECT_GT(model.value(back, 10), 20 * model.value(gone, 10));
}

// What a pause was seen of counts once, however often it is told.
TEST(ReturnModel, SurvivalIsCountedOnce) {
  ReturnModel often, once;
  size_t counted = 0;
  for (int i = 0; i < 50; ++i) counted = often.survived(ReturnModel::kTool, 100, counted);
  const size_t once_counted = once.survived(ReturnModel::kTool, 100, 0);
  often.ended(ReturnModel::kTool, 200, counted);
  once.ended(ReturnModel::kTool, 200, once_counted);
  EXPECT_DOUBLE_EQ(often.value(ReturnModel::kTool, 1), once.value(ReturnModel::kTool, 1));
}

TEST(ReturnModel, LikelihoodsOfAllLengthsSumToOneWithTheRest) {
  const ReturnModel model;
  double sum = 0;
  for (size_t k = 0; k < ReturnModel::kBuckets; ++k) sum += std::exp(model.log_likelihood(ReturnModel::kTool, 0.0101 * std::exp2(static_cast<double>(k) / 2)));
  EXPECT_GT(sum, 0.9);
  EXPECT_LE(sum, 1.0 + 1e-9);
}

TEST(ReturnModel, ClassesAreBounded) {
  ReturnModel model({}, 10);
  for (int i = 0; i < 100; ++i) model.child(ReturnModel::kTool, std::to_string(i));
  EXPECT_EQ(model.classes(), 10U);
  EXPECT_EQ(model.child(ReturnModel::kTool, "99"), ReturnModel::kTool);
}

// The best ratio of chance to holding time, found by brute force over thresholds on simulated pauses.
TEST(ReturnModel, TheValueIsTheBestRatioOfChanceToHoldingTime) {
  ReturnModel model;
  base::Random random(5);
  std::vector<double> pauses;
  for (int i = 0; i < 20000; ++i) {
    const double pause = random.below(10) < 3 ? 1e6 : std::exp(6 * random.unit());
    pauses.push_back(pause);
    pause > 1e5 ? void(model.survived(ReturnModel::kUser, 40000, 0)) : model.ended(ReturnModel::kUser, pause, 0);
  }
  for (const double elapsed : {2.0, 20.0, 100.0}) {
    double best = 0;
    for (double wait = 0.5; wait < 2000; wait *= 1.2) {
      double ended = 0, held = 0;
      for (const double pause : pauses) {
        if (pause < elapsed) continue;
        ended += pause < elapsed + wait ? 1 : 0;
        held += std::min(pause - elapsed, wait);
      }
      best = std::max(best, ended / held);
    }
    EXPECT_NEAR(model.value(ReturnModel::kUser, elapsed) / best, 1, 0.35) << elapsed;
  }
}

}  // namespace
}  // namespace kvtide::policy
