#include "apps/kvtide/top_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvtide::app {
namespace {

using testing::HasSubstr;
using testing::Not;

TopSnapshot snapshot(double at_s, int generated) {
  TopSnapshot s;
  s.url = "http://127.0.0.1:8080";
  s.at_s = at_s;
  s.tiers =
      Json::parse(R"({"tiers":[{"name":"device","budget_bytes":1048576,"used_bytes":524288,"peak_bytes":1048576,"blocks":8,"leases":1}]})");
  s.stats = Json::parse(R"({"requests":{"running":2,"waiting":3},"tokens":{"prompt":1000,"reused_device":300,"reused_host":200}})");
  s.stats["tokens"]["generated"] = generated;
  s.sessions = Json::parse(R"({"total":2,"sessions":[
    {"session_id":"coder","state":"waiting_tool","turns":3,"prompt_tokens":4000,"blocks":{"device":1,"host":60},"idle_s":4.2,"predicted_next_use_s":1.5},
    {"session_id":"odd\u001b[31m","derived":true,"state":"idle","turns":1,"prompt_tokens":10,"blocks":{"device":0,"host":0},"idle_s":900,
     "predicted_next_use_s":null}]})");
  return s;
}

TEST(TopFrame, ShowsTiersRequestsAndSessions) {
  const std::string frame = top_frame(snapshot(10, 500), nullptr, 160, 10);
  for (const char* word : {"[###############...............]", "50.0 %", "512.0 KiB of 1.0 MiB", "running 2", "waiting 3",
                           "hit rate 50.0 %", "coder", "waiting_tool", " 60 ", "4.2s", "1.5s", "15m"}) {
    EXPECT_THAT(frame, HasSubstr(word));
  }
}

TEST(TopFrame, GivesRatesFromTheFrameBefore) {
  const TopSnapshot before = snapshot(10, 500);
  EXPECT_THAT(top_frame(snapshot(12, 700), &before, 160, 10), HasSubstr("replies 100/s"));
}

TEST(TopFrame, AClientsIdCannotTouchTheTerminal) {
  const std::string frame = top_frame(snapshot(10, 500), nullptr, 160, 10);
  EXPECT_THAT(frame, Not(HasSubstr("\033")));
  EXPECT_THAT(frame, HasSubstr("~odd?[31m"));
}

TEST(TopFrame, FitsTheTerminal) {
  const std::string frame = top_frame(snapshot(10, 500), nullptr, 40, 1);
  EXPECT_THAT(frame, Not(HasSubstr("odd")));
  size_t column = 0;
  for (const char c : frame) {
    column = c == '\n' ? 0 : column + 1;
    ASSERT_LE(column, 40u);
  }
}

TEST(TopFrame, ShowsWhatOtherCachesWouldHaveReused) {
  TopSnapshot s = snapshot(10, 500);
  const Json hour = Json::parse(
      R"({"prompt":1000,"reused":500,"compulsory":150,"hits":{"lru_half":380,"lru":490,"lru_double":600,"optimal":655}})");
  const auto tenant = [&](const char* name, int prompt) {
    Json one{{"tenant", name}, {"last_hour", hour}};
    one["last_hour"]["prompt"] = prompt;
    return one;
  };
  s.stats["regret"] = {{"all", {{"last_hour", hour}}}, {"tenants", {tenant("red", 10)}}};
  EXPECT_THAT(top_frame(s, nullptr, 160, 10),
              HasSubstr("hit  50.0 %  lru at 0.5x -12.0  1x  -1.0  2x +10.0  optimal +15.5  first seen 15.0\n"));
  EXPECT_THAT(top_frame(s, nullptr, 160, 10), Not(HasSubstr("red")));  // one tenant is all
  s.stats["regret"]["tenants"] = {tenant("red", 10), tenant("blue\033", 40), tenant("green", 30), tenant("grey", 20), tenant("idle", 0)};
  const std::string frame = top_frame(s, nullptr, 160, 10);
  EXPECT_LT(frame.find("blue?"), frame.find("green"));
  EXPECT_THAT(frame, HasSubstr("grey"));
  EXPECT_THAT(frame, Not(HasSubstr("  red")));
}

TEST(TopFrame, SurvivesAnAnswerItDoesNotKnow) {
  TopSnapshot s;
  s.tiers = "odd";
  s.sessions = 7;
  EXPECT_THAT(top_frame(s, nullptr, 80, 5), HasSubstr("kvtide top"));
}

}  // namespace
}  // namespace kvtide::app
