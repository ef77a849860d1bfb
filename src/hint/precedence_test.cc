#include "hint/precedence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvtide::hint {
namespace {

using nlohmann::json;
using testing::IsEmpty;

const std::vector<Header> kFromHeaders = {{"x-session-id", "header-child"}, {"x-parent-session-id", "header-parent"}};

json turn(json agent_hint) { return {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"agent_hint", std::move(agent_hint)}}; }

Hints says_nothing() {
  Hints hints;
  hints.dialect = "none";
  return hints;
}

TEST(Precedence, NothingSaidIsNothing) {
  EXPECT_EQ(decode_body(json::parse(R"({"messages": [{"role": "user", "content": "hi"}]})"), {}), says_nothing());
}

TEST(Precedence, HeadersSpeakWhenTheBodyDoesNot) {
  const Hints hints = decode_body(turn(nullptr), kFromHeaders);
  EXPECT_EQ(hints.dialect, "opencode");
  EXPECT_EQ(hints.identity, (Identity{"header-child", "header-parent"}));
}

TEST(Precedence, TheBodysSessionIsNotGivenTheHeadersParent) {
  const Hints hints = decode_body(turn({{"session_id", "body"}}), kFromHeaders);
  EXPECT_EQ(hints.dialect, "rfc52113");
  EXPECT_EQ(hints.identity, (Identity{"body", ""}));
}

TEST(Precedence, HintWithoutASessionActsOnTheHeaders) {
  const Hints hints = decode_body(turn({{"cache_control", {{"ttl", 60}}}, {"parent_session_id", "body-parent"}}), kFromHeaders);
  EXPECT_EQ(hints.identity, (Identity{"header-child", "header-parent"}));
  ASSERT_EQ(hints.actions.size(), 1u);
  EXPECT_EQ(hints.actions[0].identity, hints.identity);
}

TEST(Precedence, EndInHeadersCountsOnlyForTheirOwnSession) {
  const std::vector<Header> final_request = {{"x-dynamo-session-id", "d"}, {"x-dynamo-session-final", "true"}};
  EXPECT_THAT(decode_body(turn({{"session_id", "body"}}), final_request).actions, IsEmpty());
  const Hints joined = decode_body(turn({{"cache_control", {{"ttl", 60}}}}), final_request);
  ASSERT_EQ(joined.actions.size(), 2u);
  EXPECT_EQ(joined.actions[1].verb, Verb::kEnd);
}

TEST(Precedence, UnusableHintIsReportedAndTheHeadersSpeak) {
  const Hints hints = decode_body(turn("??"), kFromHeaders);
  EXPECT_EQ(hints.identity.session_id, "header-child");
  EXPECT_EQ(hints.problems.size(), 1u);
}

TEST(Precedence, HeadersNobodyListensToCauseNoProblems) {
  const std::vector<Header> broken = {{"x-session-id", "\xFF"}};
  EXPECT_THAT(decode_body(turn({{"session_id", "body"}}), broken).problems, IsEmpty());
  EXPECT_EQ(decode_body(turn(nullptr), broken).problems.size(), 1u);
}

}  // namespace
}  // namespace kvtide::hint
