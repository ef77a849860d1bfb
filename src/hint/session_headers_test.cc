#include "hint/session_headers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvtide::hint {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Hints decoded(std::vector<Header> headers) { return decode_session_headers(headers); }

Hints says_nothing() {
  Hints hints;
  hints.dialect = "none";
  return hints;
}

TEST(SessionHeaders, OrdinaryHeadersSayNothing) {
  EXPECT_EQ(decoded({}), says_nothing());
  EXPECT_EQ(decoded({{"Host", "localhost"}, {"Authorization", "Bearer x"}}), says_nothing());
}

TEST(SessionHeaders, EachClientIsUnderstood) {
  Hints hints = decoded({{"X-Claude-Code-Session-Id", "main"}});
  EXPECT_EQ(hints.dialect, "claude_code");
  EXPECT_EQ(hints.identity, (Identity{"main", ""}));

  hints = decoded({{"x-session-id", " c "}, {"x-parent-session-id", "p\t"}});
  EXPECT_EQ(hints.dialect, "opencode");
  EXPECT_EQ(hints.identity, (Identity{"c", "p"}));

  hints = decoded({{"session-id", "thread"}});
  EXPECT_EQ(hints.dialect, "codex");
  EXPECT_EQ(hints.identity, (Identity{"thread", ""}));

  hints = decoded({{"X-Dynamo-Session-ID", "d"}, {"X-Dynamo-Parent-Session-ID", "d"}});
  EXPECT_EQ(hints.dialect, "dynamo");
  EXPECT_EQ(hints.identity, (Identity{"d", ""}));
  EXPECT_THAT(hints.actions, IsEmpty());
}

TEST(SessionHeaders, SubAgentsOfClaudeCodeAreSessionsOfTheirOwn) {
  EXPECT_EQ(decoded({{"x-claude-code-session-id", "m"}, {"x-claude-code-agent-id", "a1"}}).identity, (Identity{"m/a1", "m"}));
  EXPECT_EQ(
      decoded({{"x-claude-code-session-id", "m"}, {"x-claude-code-agent-id", "a2"}, {"x-claude-code-parent-agent-id", "a1"}}).identity,
      (Identity{"m/a2", "m/a1"}));
  EXPECT_EQ(decoded({{"x-claude-code-session-id", "m"}, {"x-claude-code-agent-id", "m"}}).identity, (Identity{"m", ""}));
}

TEST(SessionHeaders, SubAgentWhoseNameWouldBeTooLongStaysWithItsSession) {
  const std::string agent(kIdBytesMax, 'a');
  const Hints hints = decoded({{"x-claude-code-session-id", "m"}, {"x-claude-code-agent-id", agent}});
  EXPECT_EQ(hints.identity, (Identity{"m", ""}));
  EXPECT_EQ(hints.problems.size(), 1u);
}

TEST(SessionHeaders, FinalEndsTheSessionAfterTheRequest) {
  for (const char* yes : {"true", "True", "1"}) {
    const Hints hints = decoded({{"x-dynamo-session-id", "d"}, {"x-dynamo-session-final", yes}});
    ASSERT_EQ(hints.actions.size(), 1u) << yes;
    EXPECT_EQ(hints.actions[0].verb, Verb::kEnd);
    EXPECT_EQ(hints.actions[0].identity.session_id, "d");
  }
  for (const char* no : {"false", "0", ""}) {
    const Hints hints = decoded({{"x-dynamo-session-id", "d"}, {"x-dynamo-session-final", no}});
    EXPECT_THAT(hints.actions, IsEmpty()) << no;
    EXPECT_THAT(hints.problems, IsEmpty()) << no;
  }
  const Hints odd = decoded({{"x-dynamo-session-id", "d"}, {"x-dynamo-session-final", "perhaps"}});
  EXPECT_THAT(odd.actions, IsEmpty());
  EXPECT_EQ(odd.problems.size(), 1u);
  EXPECT_THAT(decoded({{"x-dynamo-session-final", "true"}, {"x-session-id", "s"}}).actions, IsEmpty()) << "another source's word";
}

TEST(SessionHeaders, SourcesAreNeverMixed) {
  const Hints hints = decoded({{"x-session-id", "s"}, {"x-parent-session-id", "p"}, {"x-claude-code-session-id", "m"}});
  EXPECT_EQ(hints.dialect, "claude_code");
  EXPECT_EQ(hints.identity, (Identity{"m", ""}));
}

TEST(SessionHeaders, UnusableIdIsReportedAndTheNextSourceSpeaks) {
  const std::string too_long(kIdBytesMax + 1, 'x');
  const Hints hints = decoded({{"x-claude-code-session-id", too_long}, {"x-session-id", "\xFF"}, {"session-id", "ok"}});
  EXPECT_EQ(hints.identity, (Identity{"ok", ""}));
  std::vector<std::string> fields;
  for (const Problem& problem : hints.problems) fields.push_back(problem.field);
  EXPECT_THAT(fields, ElementsAre("x-claude-code-session-id", "x-session-id"));
}

TEST(SessionHeaders, OfRepeatedHeadersTheFirstCounts) {
  EXPECT_EQ(decoded({{"session-id", "first"}, {"Session-Id", "second"}}).identity.session_id, "first");
}

}  // namespace
}  // namespace kvtide::hint
