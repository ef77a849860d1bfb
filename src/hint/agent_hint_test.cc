#include "hint/agent_hint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvtide::hint {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr base::DurationNs kMaxTtl = 3600 * base::kSecond;

/// A chat turn that carries `agent_hint`.
json turn(json agent_hint) {
  return {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"agent_hint", std::move(agent_hint)}};
}

json manage(json edits) {
  return {{"messages", json::array()},
          {"agent_hint", {{"session_id", "s"}, {"context_management", {{"manage_request", true}, {"edits", std::move(edits)}}}}}};
}

std::vector<Verb> verbs(const Hints& hints) {
  std::vector<Verb> verbs;
  for (const Action& action : hints.actions) verbs.push_back(action.verb);
  return verbs;
}

std::vector<std::string> fields(const Hints& hints) {
  std::vector<std::string> fields;
  for (const Problem& problem : hints.problems) fields.push_back(problem.field);
  return fields;
}

Hints says_nothing() {
  Hints hints;
  hints.dialect = "none";
  return hints;
}

TEST(AgentHint, BodyWithoutOneSaysNothing) {
  for (const char* body : {R"({"messages": []})", R"({"agent_hint": null})", "[]", "7", "null"}) {
    const Hints hints = decode_agent_hint(json::parse(body));
    EXPECT_EQ(hints, says_nothing()) << body;
  }
}

TEST(AgentHint, HintThatIsNoObjectIsReportedAndTheTurnGoesOn) {
  const Hints hints = decode_agent_hint(turn("offload please"));
  EXPECT_EQ(hints.dialect, "none");
  EXPECT_FALSE(hints.manage_request);
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint"));
}

TEST(Identity, SessionThatIsItsOwnParentIsARoot) {
  const Hints hints = decode_agent_hint(turn({{"session_id", "root"}, {"parent_session_id", "root"}}));
  EXPECT_EQ(hints.identity, (Identity{.session_id = "root", .parent_id = ""}));
  EXPECT_THAT(hints.problems, IsEmpty());
}

TEST(Identity, ChildNamesItsParentInEitherForm) {
  EXPECT_EQ(decode_agent_hint(turn({{"session_id", "c"}, {"parent_session_id", "p"}})).identity, (Identity{"c", "p"}));
  EXPECT_EQ(decode_agent_hint(turn({{"session_id", "c"}, {"parent_task_id", "p"}})).identity, (Identity{"c", "p"}));
  EXPECT_EQ(decode_agent_hint(turn({{"session_id", "c"}, {"parent_session_id", "p"}, {"parent_task_id", "q"}})).identity,
            (Identity{"c", "p"}));
}

TEST(Identity, IdsEndAt512BytesOfUtf8) {
  const std::string longest(kIdBytesMax, 'x');
  EXPECT_EQ(decode_agent_hint(turn({{"session_id", longest}})).identity.session_id, longest);

  const Hints too_long = decode_agent_hint(turn({{"session_id", longest + "x"}, {"parent_session_id", "p"}}));
  EXPECT_EQ(too_long.identity, Identity{});
  EXPECT_THAT(fields(too_long), ElementsAre("agent_hint.session_id"));

  const Hints no_text = decode_agent_hint(turn({{"session_id", "\xED\xA0\x80"}}));
  EXPECT_EQ(no_text.identity, Identity{});
  EXPECT_THAT(fields(no_text), ElementsAre("agent_hint.session_id"));
}

TEST(Identity, UnusableParentLeavesARoot) {
  const Hints hints = decode_agent_hint(turn({{"session_id", "c"}, {"parent_session_id", 7}}));
  EXPECT_EQ(hints.identity, (Identity{.session_id = "c", .parent_id = ""}));
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint.parent_session_id"));
}

TEST(Identity, ParentAloneIsNobody) {
  const Hints hints = decode_agent_hint(turn({{"parent_session_id", "p"}}));
  EXPECT_EQ(hints.identity, Identity{});
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint.parent_session_id"));
}

TEST(Identity, ActionsAreAboutWhoSpeaksElsewhereWhenTheHintNamesNobody) {
  const Hints hints = decode_agent_hint(turn({{"action", "offload"}}), {"from-header", "its-parent"});
  ASSERT_EQ(hints.actions.size(), 1u);
  EXPECT_EQ(hints.actions[0].identity, (Identity{"from-header", "its-parent"}));
}

TEST(Identity, ActionsOfAnUnusableIdTouchNoOtherSession) {
  const Hints hints = decode_agent_hint(turn({{"session_id", 7}, {"action", "evict"}}), {"from-header", ""});
  EXPECT_THAT(hints.actions, IsEmpty());
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint.session_id", "agent_hint.session_id"));
}

TEST(Identity, ActionsOfNobodyAreDropped) {
  const Hints hints = decode_agent_hint(turn({{"action", "evict"}}));
  EXPECT_THAT(hints.actions, IsEmpty());
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint.session_id"));
}

TEST(Seed, ActionRunsAfterATurnOrAtOnceWhenThereIsNothingToInfer) {
  json body = turn({{"session_id", "t"}, {"parent_task_id", "p"}, {"action", "offload"}});
  Hints hints = decode_agent_hint(body);
  EXPECT_EQ(hints.dialect, "seed");
  EXPECT_FALSE(hints.manage_request);
  EXPECT_THAT(verbs(hints), ElementsAre(Verb::kOffload));
  EXPECT_EQ(hints.actions[0].target, Target::kSession);
  EXPECT_EQ(hints.actions[0].identity, (Identity{"t", "p"}));

  body["messages"] = json::array();
  EXPECT_TRUE(decode_agent_hint(body).manage_request);
  body.erase("messages");
  EXPECT_TRUE(decode_agent_hint(body).manage_request);
  body["prompt"] = "complete me";
  EXPECT_FALSE(decode_agent_hint(body).manage_request);
}

TEST(Seed, OnlyThreeActionsExist) {
  for (const json& action : {json("retain"), json("end"), json("EVICT"), json(1), json::object()}) {
    const Hints hints = decode_agent_hint(turn({{"session_id", "t"}, {"action", action}}));
    EXPECT_THAT(hints.actions, IsEmpty()) << action;
    EXPECT_THAT(fields(hints), ElementsAre("agent_hint.action")) << action;
  }
}

TEST(Seed, IdentityAloneOnAnEmptyBodyIsNoManagementRequest) {
  EXPECT_FALSE(decode_agent_hint({{"messages", json::array()}, {"agent_hint", {{"session_id", "s"}}}}).manage_request);
}

TEST(Edits, WithoutTargetOrRangeAreAboutTheWholeContext) {
  EXPECT_EQ(decode_agent_hint(manage({{{"type", "evict"}}})).actions.at(0).target, Target::kSession);

  const json after_turn = {{"session_id", "s"}, {"context_management", {{"edits", {{{"type", "evict"}}}}}}};
  const Hints hints = decode_agent_hint(turn(after_turn));
  EXPECT_FALSE(hints.manage_request);
  EXPECT_EQ(hints.actions.at(0).target, Target::kSession);
  EXPECT_EQ(hints.actions.at(0).start, std::nullopt);
}

TEST(Edits, RangesKeepTheirEndsAndTheirKind) {
  const Hints hints = decode_agent_hint(
      manage({{{"type", "evict"}, {"target", "messages"}, {"start", 1}, {"end", 3}},
              {{"type", "evict"}, {"target", "tools"}, {"start", 1}},
              {{"type", "offload"}, {"start", 0}, {"end", 2}},
              {{"type", "prefetch"}, {"block_start", 4}, {"block_end", 9}},
              {{"type", "evict"}, {"target", "messages"}, {"start", 2}, {"end", 3}, {"block_start", 7}, {"block_end", 8}}}));
  EXPECT_THAT(hints.problems, IsEmpty());
  ASSERT_EQ(hints.actions.size(), 5u);
  EXPECT_EQ(hints.actions[0].target, Target::kMessages);
  EXPECT_EQ(hints.actions[0].start, 1);
  EXPECT_EQ(hints.actions[0].end, 3);
  EXPECT_EQ(hints.actions[1].target, Target::kTools);
  EXPECT_EQ(hints.actions[1].end, std::nullopt);
  EXPECT_EQ(hints.actions[2].target, Target::kMessages);
  EXPECT_EQ(hints.actions[3].target, Target::kBlocks);
  EXPECT_EQ(hints.actions[3].end, 9);
  EXPECT_EQ(hints.actions[4].target, Target::kMessages) << "block indices that a gateway added do not replace the client's own";
  EXPECT_EQ(hints.actions[4].end, 3);
}

TEST(Edits, BadRangeTakesItsEditWithItInsteadOfWideningIt) {
  const std::vector<std::pair<json, std::string>> bad = {{{{"start", -1}, {"end", 3}}, "start"},
                                                         {{{"start", 3}, {"end", 3}}, "end"},
                                                         {{{"start", "1"}, {"end", 3}}, "start"},
                                                         {{{"start", true}, {"end", 3}}, "start"},
                                                         {{{"start", 1.0}, {"end", 3}}, "start"},
                                                         {{{"end", 0}}, "end"},
                                                         {{{"block_start", 2}, {"block_end", 1}}, "block_end"}};
  for (const auto& [range, field] : bad) {
    json edit = range;
    edit["type"] = "evict";
    const Hints hints = decode_agent_hint(manage({edit, {{"type", "offload"}, {"target", "session"}}}));
    EXPECT_THAT(verbs(hints), ElementsAre(Verb::kOffload)) << range;
    EXPECT_THAT(fields(hints), ElementsAre("agent_hint.context_management.edits[0]." + field)) << range;
  }
}

TEST(Edits, SessionTakesNoRange) {
  const Hints hints = decode_agent_hint(manage({{{"type", "evict"}, {"target", "session"}, {"start", 0}, {"end", 1}}}));
  EXPECT_THAT(hints.actions, IsEmpty());
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint.context_management.edits[0].target"));
  EXPECT_TRUE(hints.manage_request) << "still answered at once";
}

TEST(Edits, BadOnesAreDroppedOneByOne) {
  const Hints hints = decode_agent_hint(
      manage({7, json::object(), {{"type", "pin"}}, {{"type", 1}}, {{"type", "evict"}, {"target", "blocks"}}, {{"type", "evict"}}}));
  EXPECT_THAT(verbs(hints), ElementsAre(Verb::kEvict));
  const std::string edits = "agent_hint.context_management.edits";
  EXPECT_THAT(fields(hints), ElementsAre(edits + "[0]", edits + "[1].type", edits + "[2].type", edits + "[3].type", edits + "[4].target"));
}

TEST(Edits, HugeIndicesStayInsideTheirType) {
  const Hints hints =
      decode_agent_hint(manage({{{"type", "evict"}, {"target", "messages"}, {"start", 0}, {"end", std::numeric_limits<uint64_t>::max()}}}));
  ASSERT_EQ(hints.actions.size(), 1u);
  EXPECT_GT(*hints.actions[0].end, 1'000'000'000);
}

TEST(Edits, MoreThanAMessageHoldsAreCutOff) {
  json edits = json::array();
  for (size_t i = 0; i < 3 * kActionsMax; ++i) edits.push_back({{"type", "offload"}});
  json body = manage(edits);
  body["agent_hint"]["session_control"] = {{"type", "stop"}};
  const Hints hints = decode_agent_hint(body);
  EXPECT_EQ(hints.actions.size(), kActionsMax);
  EXPECT_EQ(hints.actions.back().verb, Verb::kEnd) << "the end of a session is not what is cut";
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint.context_management.edits"));
}

TEST(Edits, ProblemsOfAHostileMessageAreBounded) {
  json edits = json::array();
  for (int i = 0; i < 1000; ++i) edits.push_back({{"type", "offload"}, {"start", -1}, {"end", -1}, {"block_start", -1}});
  EXPECT_EQ(decode_agent_hint(manage(edits)).problems.size(), kProblemsMax);
}

TEST(Management, WhatTheClientStatesIsWhatCounts) {
  json body = manage({{{"type", "evict"}}});
  body["agent_hint"]["context_management"]["manage_request"] = false;
  EXPECT_FALSE(decode_agent_hint(body).manage_request) << "stated, though there is nothing to infer";

  body = turn({{"session_id", "s"}, {"context_management", {{"manage_request", true}, {"edits", {{{"type", "prefetch"}}}}}}});
  EXPECT_TRUE(decode_agent_hint(body).manage_request) << "stated, though a prompt is there";

  body["agent_hint"]["context_management"]["manage_request"] = "true";
  const Hints hints = decode_agent_hint(body);
  EXPECT_FALSE(hints.manage_request);
  EXPECT_THAT(fields(hints), ElementsAre("agent_hint.context_management.manage_request"));
}

TEST(CacheControl, RetainsForFiveMinutesUnlessSaidOtherwise) {
  const auto ttl_of = [](const json& control) {
    return decode_agent_hint(turn({{"session_id", "s"}, {"cache_control", control}})).actions.at(0).ttl_ns;
  };
  EXPECT_EQ(ttl_of({{"type", "ephemeral"}}), 300 * base::kSecond);
  EXPECT_EQ(ttl_of({{"type", "ephemeral"}, {"ttl", nullptr}}), 300 * base::kSecond);
  EXPECT_EQ(ttl_of({{"type", "ephemeral"}, {"ttl", 0}}), 0);
  EXPECT_EQ(ttl_of({{"ttl", 1.5}}), 1'500 * base::kMillisecond);
  EXPECT_EQ(ttl_of({{"ttl", 3600}}), 3600 * base::kSecond);
}

TEST(CacheControl, TtlOutsideItsBoundsIsClippedAndSaid) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<json, base::DurationNs>> cases = {
      {-1, 0}, {3600.1, kMaxTtl}, {std::numeric_limits<uint64_t>::max(), kMaxTtl}, {1e300, kMaxTtl}, {infinity, kMaxTtl}, {-infinity, 0}};
  for (const auto& [ttl, expected] : cases) {
    const Hints hints = decode_agent_hint(turn({{"session_id", "s"}, {"cache_control", {{"ttl", ttl}}}}));
    EXPECT_EQ(hints.actions.at(0).ttl_ns, expected) << ttl;
    EXPECT_THAT(fields(hints), ElementsAre("agent_hint.cache_control.ttl")) << ttl;
  }
}

TEST(CacheControl, TtlOfAWrongTypeIsIgnoredAlone) {
  for (const json& ttl : {json("5m"), json(true), json::array(), json(std::nan(""))}) {
    const Hints hints = decode_agent_hint(turn({{"session_id", "s"}, {"cache_control", {{"ttl", ttl}}}}));
    EXPECT_EQ(hints.actions.at(0).ttl_ns, 300 * base::kSecond) << ttl;
    EXPECT_THAT(fields(hints), ElementsAre("agent_hint.cache_control.ttl")) << ttl;
  }
}

TEST(CacheControl, OffsetsEndTheProtectedPart) {
  const auto retained = [](const json& control) {
    return decode_agent_hint(turn({{"session_id", "s"}, {"cache_control", control}})).actions.at(0);
  };
  const Action whole = retained({{"ttl", 60}});
  EXPECT_EQ(whole.target, Target::kSession);
  EXPECT_EQ(whole.end, std::nullopt);

  const Action messages = retained({{"msg_offset", 2}, {"token_offset", 900}, {"block_offset", 14}});
  EXPECT_EQ(messages.target, Target::kMessages);
  EXPECT_EQ(messages.start, 0);
  EXPECT_EQ(messages.end, 2);

  const Action tokens = retained({{"token_offset", 900}, {"block_offset", 14}});
  EXPECT_EQ(tokens.target, Target::kTokens);
  EXPECT_EQ(tokens.end, 900);

  const Action blocks = retained({{"block_offset", 14}});
  EXPECT_EQ(blocks.target, Target::kBlocks);
  EXPECT_EQ(blocks.end, 15);
  EXPECT_GT(retained({{"block_offset", std::numeric_limits<int64_t>::max()}}).end, 0);
}

TEST(CacheControl, UnknownKindOrBadOffsetRetainsNothing) {
  for (const json& control :
       {json{{"type", "pinned"}}, json{{"type", 5}}, json{{"msg_offset", 0}}, json{{"block_offset", "3"}}, json("ephemeral")}) {
    const Hints hints = decode_agent_hint(turn({{"session_id", "s"}, {"cache_control", control}}));
    EXPECT_THAT(hints.actions, IsEmpty()) << control;
    EXPECT_EQ(hints.problems.size(), 1u) << control;
  }
}

TEST(SessionControl, FactsMoveTheLifecycle) {
  const std::vector<std::pair<std::string, Verb>> facts = {
      {"start", Verb::kResume}, {"resume", Verb::kResume}, {"pause", Verb::kPause}, {"stop", Verb::kEnd}};
  for (const auto& [word, verb] : facts) {
    EXPECT_THAT(verbs(decode_agent_hint(turn({{"session_id", "s"}, {"session_control", {{"type", word}}}}))), ElementsAre(verb)) << word;
  }
}

TEST(SessionControl, CompactionDropsNothingByItself) {
  const Hints hints = decode_agent_hint(turn({{"session_id", "s"}, {"session_control", {{"type", "compact"}}}}));
  EXPECT_THAT(hints.actions, IsEmpty());
  EXPECT_THAT(hints.problems, IsEmpty());
}

TEST(SessionControl, OnAnEmptyBodyIsAnsweredAtOnce) {
  EXPECT_TRUE(
      decode_agent_hint({{"messages", json::array()}, {"agent_hint", {{"session_id", "s"}, {"session_control", {{"type", "compact"}}}}}})
          .manage_request);
}

TEST(SessionControl, EndComesAfterEveryOtherAction) {
  json body = manage({{{"type", "evict"}}});
  body["agent_hint"]["session_control"] = {{"type", "stop"}};
  body["agent_hint"]["cache_control"] = {{"ttl", 1}};
  EXPECT_THAT(verbs(decode_agent_hint(body)), ElementsAre(Verb::kRetain, Verb::kEvict, Verb::kEnd));
  body["agent_hint"]["session_control"] = {{"type", "pause"}};
  EXPECT_THAT(verbs(decode_agent_hint(body)), ElementsAre(Verb::kPause, Verb::kRetain, Verb::kEvict));
}

TEST(TurnNumber, IsAPositiveWholeNumber) {
  EXPECT_EQ(decode_agent_hint(turn({{"session_id", "s"}, {"turn_num", 3}})).turn_number, 3);
  for (const json& number : {json(0), json(-4), json(1.5), json("3"), json(true)}) {
    const Hints hints = decode_agent_hint(turn({{"session_id", "s"}, {"turn_num", number}}));
    EXPECT_EQ(hints.turn_number, std::nullopt) << number;
    EXPECT_THAT(fields(hints), ElementsAre("agent_hint.turn_num")) << number;
  }
}

TEST(Problems, NeverQuoteWhatWasSent) {
  const std::string secret = "the-prompt-is-here";
  json edit = {{"type", secret}, {"target", secret}, {"start", secret}, {secret, 1}};
  const Hints hints = decode_agent_hint(turn({{"session_id", secret + std::string(600, 'x')},
                                              {"action", secret},
                                              {"session_control", {{"type", secret}}},
                                              {"cache_control", {{"type", secret}}},
                                              {"context_management", {{"edits", {edit}}}}}));
  EXPECT_GE(hints.problems.size(), 5u);
  for (const Problem& problem : hints.problems)
    EXPECT_EQ((problem.field + problem.message).find(secret), std::string::npos) << problem.field;
}

}  // namespace
}  // namespace kvtide::hint
