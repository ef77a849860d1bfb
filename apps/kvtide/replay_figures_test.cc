#include "apps/kvtide/replay_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/kvtide/replay_html.h"

namespace kvtide::app {
namespace {

using testing::HasSubstr;
using testing::Not;

CallResult call(double ttft_ms, int64_t reused, int64_t prompt, int64_t compulsory) {
  CallResult c;
  c.ttft_ms = ttft_ms;
  c.e2e_ms = 2 * ttft_ms;
  c.prompt_tokens = prompt;
  c.host_tokens = reused;
  c.recomputed_tokens = prompt - reused;
  c.compulsory_tokens = compulsory;
  return c;
}

ArmReport arm(const char* name, double ttft_ms, const Capacity& capacity, int repeats = 1) {
  std::vector<ArmRun> runs;
  for (int i = 0; i < repeats; ++i) {
    ArmRun run;
    run.calls = {call(ttft_ms + 10 * i, 60, 100, 30), call(ttft_ms + 10 * i, 20, 100, 10)};
    CallResult failed;
    failed.failed = true;
    failed.why = "<script>";
    failed.ttft_ms = 1e9;
    run.calls.push_back(failed);
    run.tiers = {{"device", 100, 50, 80 + i}, {"host", 100, 0, 7}};
    run.occupancy = {{0, {{"device", 100, 10, 10}, {"host", 100, 1, 1}}}, {1, {{"device", 100, 50, 80}, {"host", 100, 7, 7}}}};
    runs.push_back(run);
  }
  return summarise(*find_arm(name), capacity, runs);
}

ReplayReport report() {
  ReplayReport r;
  r.workload = "swe (synthetic)";
  r.source = "synthetic: generated";
  r.synthetic = true;
  r.machine = "a <machine>";
  r.command = "kvtide replay swe";
  r.seed = 9;
  r.users = 2;
  r.repeats = 2;
  for (const double factor : {0.25, 1.0}) {
    const Capacity capacity{factor, static_cast<int64_t>(1000 * factor), 5000};
    for (const char* name : {"off", "infer", "on"}) r.arms.push_back(arm(name, name == std::string("off") ? 100 : 50, capacity, 2));
  }
  return r;
}

TEST(Percentiles, AreLinearBetweenNeighbours) {
  EXPECT_EQ(percentile({}, 50), 0);
  EXPECT_EQ(percentile({7}, 99), 7);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 50), 20);
  EXPECT_DOUBLE_EQ(percentile({0, 10}, 95), 9.5);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  const Spread s = spread_of(hundred);
  EXPECT_DOUBLE_EQ(s.mean, 50.5);
  EXPECT_DOUBLE_EQ(s.p50, 50.5);
  EXPECT_NEAR(s.p95, 95.05, 1e-9);
  EXPECT_NEAR(s.p99, 99.01, 1e-9);
}

TEST(ArmFigures, PoolRepeatsAndKeepTheirMeans) {
  const ArmReport a = arm("off", 100, {}, 2);
  EXPECT_EQ(a.requests, 6);
  EXPECT_EQ(a.failed, 2);
  EXPECT_DOUBLE_EQ(a.ttft_ms.mean, 105);
  EXPECT_EQ(a.ttft_mean_by_repeat_ms, (std::vector<double>{100, 110}));
  EXPECT_DOUBLE_EQ(a.hit_rate(), 160.0 / 400);
  EXPECT_DOUBLE_EQ(a.hit_bound(), 320.0 / 400);
  EXPECT_EQ(a.peak_bytes.at("device"), 81) << "the highest of all repeats";
}

TEST(ReplayJson, HasTheAgreedShape) {
  const Json j = to_json(report());
  for (const char* key : {"machine", "seed", "arms"}) EXPECT_TRUE(j.contains(key)) << key;
  ASSERT_EQ(j["arms"].size(), 6u);
  for (const Json& a : j["arms"]) {
    for (const char* key : {"arm", "capacity", "requests", "failed", "ttft_ms", "e2e_ms", "prompt_tokens", "reused_tokens",
                            "recomputed_tokens", "compulsory_tokens", "peak_bytes", "byte_mismatches"}) {
      EXPECT_TRUE(a.contains(key)) << key;
    }
    for (const char* key : {"device_tokens", "host_bytes", "disk_bytes", "pool_bytes"})
      EXPECT_TRUE(a["capacity"][key].is_number_integer()) << key;
    for (const char* figure : {"ttft_ms", "e2e_ms"}) {
      for (const char* key : {"mean", "p50", "p95", "p99"}) EXPECT_TRUE(a[figure][key].is_number()) << figure << key;
    }
    EXPECT_TRUE(a["peak_bytes"]["device"].is_number_integer());
    EXPECT_TRUE(a["peak_bytes"]["host"].is_number_integer());
  }
  EXPECT_NEAR(j["arms"][2]["ratio_to_off"]["ttft_mean"], 55.0 / 105, 1e-9);
  EXPECT_EQ(j["synthetic"], true);
}

TEST(ReplayTable, HasEveryArmTheFailuresAndTheSpread) {
  const std::string table = to_table(report());
  for (const char* word :
       {"off ", "infer ", "on ", "0.25 x", "1.00 x", "2/6", "seed 9", "0.52x", "spread over 2 repeats", "synthetic", "a <machine>"}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
}

TEST(ReplayTable, WarnsAboutASingleRun) {
  ReplayReport r = report();
  r.repeats = 1;
  EXPECT_THAT(to_table(r), HasSubstr("One repeat each"));
}

TEST(ReplayHtml, IsOnePageWithEveryArmAndNothingFromElsewhere) {
  const std::string page = to_html(report());
  for (const char* word : {"TTFT distribution", "Tier occupancy: device", "Tier occupancy: host", "The whole curve", ">off<", ">infer<",
                           ">on<", "Synthetic"}) {
    EXPECT_THAT(page, HasSubstr(word));
  }
  EXPECT_THAT(page, HasSubstr("a &lt;machine&gt;"));
  for (const char* word : {"<script", "http://", "https://", "src=", "nan", "inf'"}) EXPECT_THAT(page, Not(HasSubstr(word)));
}

TEST(ReplayHtml, SurvivesARunWithoutASingleGoodCall) {
  ReplayReport r;
  r.arms.push_back(summarise(*find_arm("off"), {}, {ArmRun()}));
  EXPECT_THAT(to_html(r), Not(HasSubstr("nan")));
  EXPECT_THAT(to_table(r), Not(HasSubstr("nan")));
  EXPECT_FALSE(to_json(r).dump().empty());
}

TEST(Machine, IsOneLine) {
  EXPECT_THAT(machine_line(), HasSubstr("cores"));
  EXPECT_EQ(machine_line().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace kvtide::app
