#include "hint/native.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvtide::hint {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> fields(const Hints& hints) {
  std::vector<std::string> fields;
  for (const Problem& problem : hints.problems) fields.push_back(problem.field);
  return fields;
}

Hints decoded(const json& message) {
  base::Result<Hints> hints = decode_native(message);
  EXPECT_TRUE(hints.has_value()) << message << ": " << (hints ? "" : hints.error().message);
  return hints.value_or(Hints{});
}

TEST(Native, ABatchKeepsItsOrderAndEachHintItsSession) {
  const Hints hints = decoded({{"hints",
                                {{{"hint_id", "h-1"}, {"session_id", "a"}, {"parent_session_id", "root"}, {"verb", "offload"}},
                                 {{"session_id", "b"}, {"parent_session_id", "b"}, {"verb", "prefetch"}, {"deadline_ms", 250}}}}});
  EXPECT_EQ(hints.dialect, "native");
  EXPECT_TRUE(hints.manage_request);
  EXPECT_EQ(hints.identity, Identity{});
  EXPECT_THAT(hints.problems, IsEmpty());
  ASSERT_EQ(hints.actions.size(), 2u);
  EXPECT_EQ(hints.actions[0].hint_id, "h-1");
  EXPECT_EQ(hints.actions[0].identity, (Identity{"a", "root"}));
  EXPECT_EQ(hints.actions[1].identity, (Identity{"b", ""}));
  EXPECT_EQ(hints.actions[1].expected_ns, 250 * base::kMillisecond);
}

TEST(Native, OneBareHintOrABareListIsAMessageToo) {
  const json hint = {{"session_id", "a"}, {"verb", "end"}};
  EXPECT_EQ(decoded(hint).actions.at(0).verb, Verb::kEnd);
  EXPECT_EQ(decoded(json::array({hint, hint})).actions.size(), 2u);
  EXPECT_THAT(decoded({{"hints", json::array()}}).actions, IsEmpty());
}

TEST(Native, PauseSaysWhichToolAndForHowLong) {
  const Hints hints = decoded({{"session_id", "a"}, {"verb", "pause"}, {"tool", "pytest"}, {"expected_ms", 1500.5}});
  EXPECT_EQ(hints.actions.at(0).tool, "pytest");
  EXPECT_EQ(hints.actions.at(0).expected_ns, 1'500'500'000);
}

TEST(Native, RetainHasATtlWithinTheHour) {
  EXPECT_EQ(decoded({{"session_id", "a"}, {"verb", "retain"}}).actions.at(0).ttl_ns, 300 * base::kSecond);
  const Hints clipped = decoded({{"session_id", "a"}, {"verb", "retain"}, {"ttl_s", 7200}});
  EXPECT_EQ(clipped.actions.at(0).ttl_ns, 3600 * base::kSecond);
  EXPECT_THAT(fields(clipped), ElementsAre("ttl_s"));
}

TEST(Native, RangesOfEveryTarget) {
  for (const char* target : {"messages", "tools", "tokens", "blocks"}) {
    const Hints hints = decoded({{"session_id", "a"}, {"verb", "evict"}, {"target", target}, {"start", 2}, {"end", 5}});
    EXPECT_EQ(hints.actions.at(0).target, *parse_target(target));
    EXPECT_EQ(hints.actions.at(0).start, 2);
    EXPECT_EQ(hints.actions.at(0).end, 5);
  }
}

TEST(Native, AnUnusableEnvelopeIsAnError) {
  for (const char* text : {"7", "\"evict\"", "null", "{}", R"({"hints": {}})", R"({"hints": null})", R"({"hints": "all"})",
                           R"({"session_id": "a"})", R"({"verb": "evict"})", R"({"session_id": "a", "verb": "pin"})",
                           R"({"session_id": 3, "verb": "evict"})", R"({"session_id": "", "verb": "evict"})"}) {
    const base::Result<Hints> hints = decode_native(json::parse(text));
    ASSERT_FALSE(hints.has_value()) << text;
    EXPECT_EQ(hints.error().code, base::Code::kInvalidArgument) << text;
  }
  EXPECT_EQ(decode_native({{"session_id", "a"}}).error().message, "verb: missing");
}

TEST(Native, ABadHintOfABatchIsDroppedAndTheOthersGoOn) {
  const Hints hints = decoded({{"hints",
                                {{{"session_id", "a"}, {"verb", "offload"}},
                                 {{"session_id", "a"}},
                                 {{"verb", "evict"}},
                                 {{"session_id", "a"}, {"verb", "pin"}},
                                 {{"session_id", "a"}, {"verb", "evict"}, {"start", 1}},
                                 {{"session_id", "a"}, {"verb", "evict"}, {"target", "session"}, {"start", 1}},
                                 {{"session_id", "a"}, {"verb", "pause"}, {"target", "tools"}},
                                 {{"session_id", "a"}, {"verb", "evict"}, {"hint_id", std::string(kHintIdBytesMax + 1, 'h')}},
                                 {{"session_id", "a"}, {"verb", "evict"}, {"target", "tokens"}, {"end", "9"}},
                                 nullptr,
                                 {{"session_id", "z"}, {"verb", "evict"}}}}});
  ASSERT_EQ(hints.actions.size(), 2u);
  EXPECT_EQ(hints.actions[1].identity.session_id, "z");
  EXPECT_THAT(fields(hints), ElementsAre("hints[1].verb", "hints[2].session_id", "hints[3].verb", "hints[4].target", "hints[5].target",
                                         "hints[6].target", "hints[7].hint_id", "hints[8].end", "hints[9]"));
}

TEST(Native, TuningThatAVerbHasNoUseForIsSaid) {
  const Hints hints =
      decoded({{"session_id", "a"}, {"verb", "evict"}, {"ttl_s", 5}, {"expected_ms", 5}, {"deadline_ms", 5}, {"tool", "x"}});
  EXPECT_EQ(hints.actions.size(), 1u);
  EXPECT_EQ(hints.actions[0].ttl_ns, std::nullopt);
  EXPECT_EQ(hints.actions[0].expected_ns, std::nullopt);
  EXPECT_THAT(fields(hints), ElementsAre("ttl_s", "expected_ms", "tool", "deadline_ms"));
}

TEST(Native, UnknownFieldsAreIgnored) {
  EXPECT_THAT(decoded({{"session_id", "a"}, {"verb", "end"}, {"scope", {1, 2}}}).problems, IsEmpty());
}

TEST(Native, MoreHintsThanAMessageHoldsAreCutOff) {
  json list = json::array();
  for (size_t i = 0; i < kActionsMax + 1; ++i) list.push_back({{"session_id", std::to_string(i)}, {"verb", "end"}});
  const Hints hints = decoded({{"hints", list}});
  EXPECT_EQ(hints.actions.size(), kActionsMax);
  EXPECT_THAT(fields(hints), ElementsAre("hints"));
}

}  // namespace
}  // namespace kvtide::hint
