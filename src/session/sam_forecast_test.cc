// What the manager expects of sessions: learned from what it sees, and from what clients say as far as that proved true.
#include <gtest/gtest.h>

#include "session/testing/world.h"

namespace kvtide::session {
namespace {

using hint::Outcome;
using hint::Verb;
using testing::World;
using namespace testing;

SamConfig roomy() { return config(/*lanes=*/false, 64, 8192, 0); }

double rate(World& w, const std::string& session) {
  const SessionId id = w.sam().sessions().find("t", session);
  return w.sam().sessions().forecast(w.sam().sessions().newest_branch(id), w.now()).rate_per_s;
}

TEST(Ends, AClientWhoseSessionsGoOnIsNoLongerBelieved) {
  World w(roomy());
  // Given a client that ends sessions which then go on where they were
  for (int i = 0; i < 3; ++i) {
    const std::string name = "liar" + std::to_string(i);
    const auto prompt = text(10 + i, 64);
    w.turn({.session = name, .prompt = prompt});
    w.hint(name, Verb::kEnd);
    w.turn({.session = name, .prompt = prompt + text(20 + i, 16)});
  }
  // When it says so of another one
  const auto prompt = text(30, 64);
  w.turn({.session = "victim", .prompt = prompt});
  const auto receipt = w.hint("victim", Verb::kEnd);
  // Then nothing is freed, and the receipt says why
  EXPECT_EQ(receipt.status, Outcome::kRejected);
  EXPECT_FALSE(receipt.reason.empty());
  EXPECT_EQ(w.blocks_in("victim", Tier::kDevice), 8);
  EXPECT_GE(w.turn({.session = "victim", .prompt = prompt + text(31, 8)}).device, 64);
}

TEST(Ends, EvictIsACommandAndStillDone) {
  World w(roomy());
  for (int i = 0; i < 3; ++i) {
    const auto prompt = text(10 + i, 64);
    w.turn({.session = "a", .prompt = prompt});
    w.hint("a", Verb::kEnd);
    w.turn({.session = "a", .prompt = prompt + text(20 + i, 16)});
  }
  EXPECT_EQ(w.hint("a", Verb::kEvict).status, Outcome::kApplied);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 0);
}

TEST(Ends, AnotherConversationUnderAnOldNameTakesNothingBack) {
  World w(roomy());
  for (int i = 0; i < 10; ++i) {
    w.turn({.session = "worker", .prompt = text(100 + i, 64)});
    EXPECT_EQ(w.hint("worker", Verb::kEnd).status, Outcome::kApplied) << i;
    w.advance(1);
  }
}

TEST(Ends, AClientThatTellsTheTruthAgainIsBelievedAgain) {
  World w(roomy());
  for (int i = 0; i < 3; ++i) {
    const auto prompt = text(10 + i, 64);
    w.turn({.session = "a" + std::to_string(i), .prompt = prompt});
    w.hint("a" + std::to_string(i), Verb::kEnd);
    w.turn({.session = "a" + std::to_string(i), .prompt = prompt + text(20 + i, 16)});
  }
  Outcome last = Outcome::kRejected;
  for (int i = 0; i < 30; ++i) {
    const std::string name = "honest" + std::to_string(i);
    w.turn({.session = name, .prompt = text(200 + i, 16)});
    last = w.hint(name, Verb::kEnd).status;
  }
  EXPECT_EQ(last, Outcome::kApplied);
}

TEST(Pauses, AnAnnouncedReturnMakesBlocksWorthMoreAndALieSoonDoesNot) {
  World honest(roomy());
  World liar(roomy());
  for (int i = 0; i < 80; ++i) {
    for (World* w : {&honest, &liar}) {
      w->turn({.session = "s", .prompt = text(1, 64 + 8 * i), .finish = Finish::kToolCalls});
      const double length_s = i % 2 == 0 ? 2 : 500;
      w->pause("s", w == &honest ? length_s : 1000 / length_s);
      w->advance(length_s);
    }
  }
  auto worth = [](World& w, double announced_s) {
    w.turn({.session = "s", .prompt = text(1, 64 + 8 * 80), .finish = Finish::kToolCalls});
    w.pause("s", announced_s);
    const double rated = rate(w, "s");
    w.advance(2);
    return rated;
  };
  EXPECT_GT(worth(honest, 2), 20 * worth(honest, 500));
  EXPECT_LT(worth(liar, 2), 3 * worth(liar, 500));
}

TEST(Pauses, WhatAClientSaysDoesNotChangeWhatWasSeen) {
  World w(roomy());
  w.turn({.session = "a", .prompt = text(1, 64), .finish = Finish::kStop});
  w.turn({.session = "b", .prompt = text(2, 64), .finish = Finish::kStop});
  w.pause("b", 1);
  w.turn({.session = "b", .prompt = text(2, 72), .finish = Finish::kStop});
  w.turn({.session = "a", .prompt = text(1, 72), .finish = Finish::kStop});
  // Both wait for a person as far as the server saw, so both are of one kind.
  EXPECT_NEAR(rate(w, "a") / rate(w, "b"), 1, 0.2);
}

// The derived session that `prompt` belongs to, after one more turn with it.
std::string whose(World& w, const std::vector<int32_t>& prompt) {
  const RequestId id = w.arrive({.prompt = prompt});
  EXPECT_TRUE(w.admit(id));
  w.run(id, 8);
  const std::string name = w.sam().sessions().at(w.sam().session_of(id)).name;
  w.finish(id);
  w.advance(1);
  return name;
}

TEST(Unnamed, AConversationThatIsEditedFarBackIsStillTheSame) {
  World w(roomy());
  const auto opening = text(1, 32);
  const std::string name = whose(w, opening);
  auto history = opening + reply(8) + text(2, 32);
  EXPECT_EQ(whose(w, history), name);
  // When an old result is cut out of what follows the first reply
  EXPECT_EQ(whose(w, opening + reply(8) + text(3, 8) + text(4, 64)), name);
  w.check();
}

TEST(Unnamed, ConversationsWithTheSameSystemPromptAreApart) {
  World w(roomy());
  const auto system = text(1, 64);
  const std::string a = whose(w, system + text(2, 8));
  const std::string b = whose(w, system + text(3, 8));
  EXPECT_NE(a, b);
  // However much of them that is, each is found again, and neither takes the other's place
  EXPECT_EQ(whose(w, system + text(2, 8) + reply(8) + text(4, 8)), a);
  EXPECT_EQ(whose(w, system + text(3, 8) + reply(8) + text(5, 8)), b);
  EXPECT_NE(whose(w, system + text(6, 8)), a);
  EXPECT_EQ(whose(w, system + text(2, 8) + reply(8) + text(4, 8) + reply(8) + text(7, 8)), a);
}

// Replies that fill no block of their own do not make the text behind them one's own.
TEST(Unnamed, AShortReplyGivesNobodyTheDocumentOfAnother) {
  World w(roomy());
  auto ask = [&](const std::vector<int32_t>& prompt) {
    const RequestId id = w.arrive({.prompt = prompt});
    EXPECT_TRUE(w.admit(id));
    w.run(id, 1);
    const std::string name = w.sam().sessions().at(w.sam().session_of(id)).name;
    w.finish(id);
    w.advance(1);
    return name;
  };
  const auto system = text(1, 64);
  ask(system + text(2, 2));
  const auto document = system + text(3, 64);
  const std::string b = ask(document + text(4, 16));
  EXPECT_NE(ask(document + text(5, 16)), b);
}

TEST(Unnamed, ASideRequestDoesNotTakeThePlaceOfAConversationThatWaits) {
  World w(roomy());
  const auto opening = text(1, 32);
  const std::string name = whose(w, opening);
  const auto history = opening + reply(8) + text(2, 32);
  EXPECT_EQ(whose(w, history), name);
  // When the same history is asked for a title, beside it
  EXPECT_EQ(whose(w, history + text(3, 16)), name);
  // Then the conversation goes on where it was, with its reply
  const Reuse reuse = w.turn({.prompt = history + reply(8) + text(4, 8)});
  EXPECT_GE(reuse.device, static_cast<int32_t>((history + reply(8)).size()));
  w.check();
}

TEST(Unnamed, ARunningConversationThatIsEditedGetsABranchOfItsOwn) {
  World w(roomy());
  const auto opening = text(1, 32);
  const std::string name = whose(w, opening);
  const auto history = opening + reply(8) + text(2, 32);
  EXPECT_EQ(whose(w, history), name);
  const RequestId running = w.arrive({.prompt = history + reply(8) + text(3, 8)});
  EXPECT_TRUE(w.admit(running));
  EXPECT_EQ(whose(w, opening + reply(8) + text(4, 16)), name);
  w.run(running, 4);
  w.finish(running);
  EXPECT_EQ(w.sam().sessions().count(), 1);
  w.check();
}

TEST(LeftBehind, WhatACompactionAlwaysReplacesIsLearnedToBeDead) {
  World w(roomy());
  const auto system = text(1, 16);
  // Given conversations that are compacted while they wait for a tool and never return to what was before
  auto play = [&](int n) {
    const std::string name = "s" + std::to_string(n);
    for (int turn = 0; turn < 4; ++turn) {
      if (turn > 0) w.advance(10);
      w.turn({.session = name, .prompt = system + text(100 + n, 64 + 8 * turn), .finish = Finish::kToolCalls});
    }
    w.advance(2);
  };
  auto compact = [&](int n) {
    w.turn({.session = "s" + std::to_string(n), .prompt = system + text(1000 + n, 8), .finish = Finish::kToolCalls});
    w.advance(60);
    for (int i = 0; i < 4; ++i) w.sam().tick(w.now());
  };
  for (int n = 0; n < 60; ++n) {
    play(n);
    compact(n);
    w.hint("s" + std::to_string(n), Verb::kEvict);
  }
  // When one more is compacted
  play(90);
  const auto& sessions = w.sam().sessions();
  const auto branch = sessions.at(sessions.find("t", "s90")).branches.front();
  const double waiting = sessions.forecast(branch, w.now()).rate_per_s;
  w.turn({.session = "s90", .prompt = system + text(1090, 8), .finish = Finish::kToolCalls});
  // Then what it had before is worth less from that moment
  EXPECT_LT(5 * sessions.forecast(branch, w.now()).rate_per_s, waiting);
}

TEST(LeftBehind, WhatWasAnnouncedOfASessionEndsWithItsEditHoweverLong) {
  World w(roomy());
  const auto system = text(1, 16);
  w.turn({.session = "a", .prompt = system + text(2, 64), .finish = Finish::kToolCalls});
  w.pause("a", 300);
  const auto& sessions = w.sam().sessions();
  const auto& branches = sessions.at(sessions.find("t", "a")).branches;
  const auto before = branches.front();
  w.turn({.session = "a", .prompt = system + text(3, 128), .finish = Finish::kToolCalls});
  ASSERT_EQ(branches.size(), 2U);
  EXPECT_EQ(sessions.branch(before).pause.length_ns, 0);
}

TEST(LeftBehind, WhatWasAnnouncedOfASessionEndsWithItsCompactionNotWithASubAgent) {
  World w(roomy());
  const auto system = text(1, 16);
  w.turn({.session = "a", .prompt = system + text(2, 64), .finish = Finish::kToolCalls});
  w.pause("a", 300);
  const auto& sessions = w.sam().sessions();
  const auto& branches = sessions.at(sessions.find("t", "a")).branches;
  const auto before = branches.front();
  w.turn({.session = "a", .prompt = text(3, 16), .finish = Finish::kToolCalls});
  ASSERT_EQ(branches.size(), 2U);
  EXPECT_GT(sessions.branch(before).pause.length_ns, 0);
  w.turn({.session = "a", .prompt = system + text(4, 16), .finish = Finish::kToolCalls});
  ASSERT_EQ(branches.size(), 3U);
  EXPECT_EQ(sessions.branch(before).pause.length_ns, 0);
}

TEST(Newcomers, ASessionThatIsAlwaysFollowedByAnotherIsLearnedToHaveEnded) {
  World w(roomy());
  // Given a worker that starts a session as soon as one is over, after five turns each
  auto play = [&](int n, int turns) {
    for (int i = 0; i < turns; ++i) {
      w.turn({.session = "s" + std::to_string(n), .prompt = text(n, 16 + 8 * i)});
      if (i + 1 < turns) w.advance(20);
    }
  };
  for (int n = 0; n < 60; ++n) {
    play(n, 5);
    w.sam().tick(w.now());
  }
  // When one has just been followed by another, and the other only waits
  play(100, 5);
  play(101, 1);
  w.advance(10);
  for (int i = 0; i < 5; ++i) w.sam().tick(w.now());
  // Then the one that waits is expected back, the other is not
  EXPECT_GT(rate(w, "s101"), 5 * rate(w, "s100"));
}

}  // namespace
}  // namespace kvtide::session
