// The policy `rfc52113` at work: classes, soft time to live, and each published defect shown absent (docs/policies.md).
#include <gtest/gtest.h>

#include "session/testing/world.h"

namespace kvtide::session {
namespace {

using hint::Outcome;
using hint::Verb;
using testing::text;
using testing::World;
using namespace testing;

constexpr int32_t kPrompt = 33;  // four full blocks and one token more

// Room on the device for `seqs` prompts of kPrompt tokens.
SamConfig room_for(bool lanes, int32_t seqs, int64_t host_blocks) {
  constexpr int32_t kPerSeq = 40;
  SamConfig c = config(lanes, seqs, seqs * kPerSeq, host_blocks, "rfc52113");
  c.device.seq_tokens_max = kPerSeq;
  c.retain_tenant_share = 1;
  c.retain_tree_share = 1;
  return c;
}

std::vector<int32_t> prompt_of(const std::string& session) { return text(static_cast<int32_t>(session.back()), kPrompt); }

void speak(World& w, const std::string& session, const std::string& tenant = "t") {
  w.turn({.session = session, .prompt = prompt_of(session), .tenant = tenant});
  w.advance(1);
}

/// Sessions of `names` that are wholly on the device.
std::string on_device(World& w, const std::string& names) {
  std::string found;
  for (char name : names) {
    const std::string id(1, name);
    if (w.sam().sessions().find("t", id).valid() && w.blocks_in(id, Tier::kDevice) == 4) found += name;
  }
  return found;
}

class Rfc52113Sam : public ::testing::TestWithParam<bool> {
 protected:
  static SamConfig shape(int32_t seqs, int64_t host_blocks = 0) { return room_for(GetParam(), seqs, host_blocks); }
};
INSTANTIATE_TEST_SUITE_P(Layouts, Rfc52113Sam, ::testing::Bool(), [](const auto& info) { return info.param ? "Lanes" : "Unified"; });

// --- Classes -------------------------------------------------------------------------------------------------------------------------

TEST_P(Rfc52113Sam, TheUnclaimedGoFirstThenTheClaimedThenTheProtected) {
  // Given a session that asked for protection, one that did not, and one that the server has forgotten, in this order of last use.
  SamConfig c = shape(3);
  c.sessions_max = 2;
  World w(c);
  speak(w, "f");
  speak(w, "c");
  ASSERT_EQ(w.retain("c", 300).status, Outcome::kApplied);
  w.turn({.session = "b", .prompt = prompt_of("b"), .finish = Finish::kToolCalls});  // the third of two: f is forgotten
  ASSERT_FALSE(w.sam().sessions().find("t", "f").valid());
  const auto keys = index::chain_keys(index::root_key({"t", "", base::Digest{}, kBlock}), prompt_of("f"), kBlock);
  auto forgotten_is_here = [&] { return w.sam().blocks().find(keys[3]).valid(); };
  ASSERT_TRUE(forgotten_is_here());

  // When sub-agents of b need room, nobody's blocks go first.
  const RequestId one = w.arrive({.session = "b", .prompt = text(500, kPrompt)});
  ASSERT_TRUE(w.admit(one));
  w.run(one, 0);
  EXPECT_FALSE(forgotten_is_here());
  EXPECT_EQ(on_device(w, "bc"), "bc");

  // And then those that are claimed, though used later than the protected ones.
  const RequestId two = w.arrive({.session = "b", .prompt = text(501, kPrompt)});
  ASSERT_TRUE(w.admit(two));
  w.run(two, 0);
  EXPECT_EQ(on_device(w, "bc"), "c");
  w.check();
  for (RequestId id : {one, two}) w.finish(id, Finish::kCancelled);
}

TEST_P(Rfc52113Sam, WithinAClassTheLeastRecentlyUsedGoesFirst) {
  // Given two protected and two claimed sessions, each class with an older and a newer one.
  World w(shape(4));
  for (const char* name : {"c", "b", "d", "a"}) speak(w, name);
  for (const char* name : {"d", "c"}) w.retain(name, 300);  // asked in the other order: it does not matter when it was asked
  // When four newcomers come, protected themselves so that they stay.
  std::string left;
  for (const char* name : {"1", "2", "3", "4"}) {
    speak(w, name);
    w.retain(name, 300);
    left += on_device(w, "abcd") + " ";
  }
  // Then they go in the order of class and last use.
  EXPECT_EQ(left, "acd cd d  ");
  w.check();
}

TEST_P(Rfc52113Sam, WhenOnlyProtectedBlocksAreLeftProtectionIsBrokenAndInferenceGoesOn) {
  // Given a device and a host tier full of protected blocks.
  World w(shape(2, 4));
  for (const char* name : {"a", "b", "c"}) {
    speak(w, name);
    ASSERT_EQ(w.retain(name, 3600).status, Outcome::kApplied);
  }
  // When requests without any hint come, as many as the device holds.
  const RequestId one = w.arrive({.prompt = text(500, kPrompt), .reply = 3});
  const RequestId two = w.arrive({.prompt = text(501, kPrompt), .reply = 3});
  // Then they are admitted at once and finish.
  ASSERT_TRUE(w.admit(one));
  ASSERT_TRUE(w.admit(two));
  w.run(one, 3);
  w.run(two, 3);
  w.finish(one);
  w.finish(two);
  EXPECT_EQ(on_device(w, "abc"), "");
  w.check();
}

TEST_P(Rfc52113Sam, TheHostTierKeepsTheSameOrderAndRefusesWhatIsWorthLess) {
  // Given a host tier that is full of one protected session, and the device too.
  World w(shape(1, 4));
  speak(w, "c");
  w.retain("c", 300);
  speak(w, "b");  // c goes to the host tier
  ASSERT_EQ(w.blocks_in("c", Tier::kHost), 4);
  // When a claimed session must leave the device.
  speak(w, "d");
  // Then it does not take the place of the protected one, however old that is.
  EXPECT_EQ(w.blocks_in("c", Tier::kHost), 4);
  EXPECT_EQ(w.blocks_in("b", Tier::kHost), 0);
  // Until the time is over: at that instant, with nothing else happening.
  w.advance(300);
  speak(w, "e");
  EXPECT_EQ(w.blocks_in("d", Tier::kHost), 4);
  EXPECT_EQ(w.blocks_in("c", Tier::kHost), 0);
  w.check();
}

TEST(Rfc52113Unified, ABlockOfTheTrunkHasTheHighestClassOfThoseWhoShareIt) {
  // Given two sessions over one trunk, of which one is protected, and an unrelated claimed session used later.
  World w(room_for(false, 3, 0));
  const auto trunk = text(1, 16);
  w.turn({.session = "p", .prompt = trunk + text(2, 16)});
  w.advance(1);
  w.turn({.session = "q", .prompt = trunk + text(3, 16)});
  w.advance(1);
  w.retain("p", 100);
  speak(w, "z");
  // When room for three prompts is needed.
  speak(w, "1");
  w.retain("1", 100);
  speak(w, "2");
  // Then what only the others claim has gone, and the whole of the protected context is there.
  EXPECT_EQ(w.blocks_in("p", Tier::kDevice), 4);
  EXPECT_LT(w.blocks_in("q", Tier::kDevice), 4);
  EXPECT_LT(w.blocks_in("z", Tier::kDevice), 4);
  w.check();
}

TEST_P(Rfc52113Sam, ADeadlineIsNeverCombinedWithAnotherClaim) {
  // Given a trunk that one session protects for ten seconds and another claims for good.
  World w(shape(2, 64));
  const auto trunk = text(1, 24);
  w.turn({.session = "p", .prompt = trunk + text(2, 8)});
  w.turn({.session = "q", .prompt = trunk + text(3, 8)});
  w.retain("p", 10);
  w.run_until_quiet();
  const BlockId shared = w.sam().sessions().branch(BranchId(0)).path[0];
  const auto policy = policy::make_policy("rfc52113", {w.sam().blocks(), w.sam().sessions(), w.sam().costs(), kBlock, 100, true}).value();
  auto rank = [&](BlockId id) { return policy->rank(id, Tier::kHost, w.now()); };
  const BlockId of_q = w.sam().sessions().branch(BranchId(1)).path[3];
  EXPECT_LT(rank(shared), rank(of_q) - 1e15);  // another class
  // When the protecting session ends, its deadline does not live on in the other's claim.
  w.hint("p", Verb::kEnd);
  EXPECT_NEAR(rank(shared), rank(of_q), 1e10);
  w.check();
}

TEST_P(Rfc52113Sam, WhatLosesItsProtectionWithASessionGoesAtOnceThoughOthersClaimIt) {
  // Given a full host tier: one context that a protected and another session share, and one that is claimed and newer.
  World w(shape(1, 8));
  for (const char* name : {"p", "q"}) w.turn({.session = name, .prompt = text(1, kPrompt)});
  w.advance(1);
  w.retain("p", 3600);
  for (const char* name : {"b", "z"}) speak(w, name);
  ASSERT_EQ(w.blocks_in("q", Tier::kHost), 4);
  ASSERT_EQ(w.blocks_in("b", Tier::kHost), 4);
  // When the protected one ends, and another context asks for room.
  EXPECT_EQ(w.hint("p", Verb::kEnd).shared_kept, 4);
  w.check();
  speak(w, "y");
  // Then the shared context is an ordinary one, and the older of the two.
  EXPECT_EQ(w.blocks_in("q", Tier::kHost), 0);
  EXPECT_EQ(w.blocks_in("b", Tier::kHost), 4);
}

// --- Time to live --------------------------------------------------------------------------------------------------------------------

TEST_P(Rfc52113Sam, UsingASessionDoesNotRenewItAndAskingAgainDoes) {
  for (const bool ask_again : {false, true}) {
    // Given a session protected for ten seconds that has a turn within them.
    World w(shape(2));
    speak(w, "c");
    w.retain("c", 10);
    w.advance(5);
    w.turn({.session = "c", .prompt = prompt_of("c") + text(7, 2)});
    if (ask_again) w.retain("c", 10);
    w.advance(7);
    // When the first ten seconds are over and a newer session and a newcomer compete with it.
    speak(w, "b");
    speak(w, "1");
    // Then it is still there only if it asked again.
    EXPECT_EQ(on_device(w, "bc"), ask_again ? "c" : "b") << ask_again;
    w.check();
  }
}

TEST_P(Rfc52113Sam, ARenewalNeverShortensWhatWasPromised) {
  World w(shape(2));
  speak(w, "c");
  w.retain("c", 100);
  EXPECT_EQ(w.retain("c", 1).status, Outcome::kApplied);
  w.advance(50);
  speak(w, "b");
  speak(w, "1");
  EXPECT_EQ(on_device(w, "bc"), "c");
}

TEST_P(Rfc52113Sam, EvictAndEndCancelTheTimeToLive) {
  for (const Verb verb : {Verb::kEvict, Verb::kEnd}) {
    // Given a protected session that ends, and comes back under the same id.
    World w(shape(2));
    speak(w, "c");
    w.retain("c", 3600);
    ASSERT_EQ(w.hint("c", verb).status, Outcome::kApplied);
    EXPECT_EQ(w.sam().blocks().size(), 0U);
    speak(w, "c");
    // Then its new life starts without protection: the least recently used goes.
    speak(w, "b");
    speak(w, "1");
    EXPECT_EQ(on_device(w, "bc1"), "b1");
    w.check();
  }
}

TEST_P(Rfc52113Sam, ProtectionAskedForAfterTheEndIsNotInheritedByTheNextLife) {
  World w(shape(2));
  speak(w, "c");
  w.hint("c", Verb::kEnd);
  EXPECT_EQ(w.retain("c", 3600).status, Outcome::kStale);
  speak(w, "c");
  speak(w, "b");
  speak(w, "1");
  EXPECT_EQ(on_device(w, "bc1"), "b1");
}

TEST_P(Rfc52113Sam, AnotherSessionInTheSamePlacesInheritsNothing) {
  // Given a protected session that the server forgot for want of room, so that its session, branch and block ids are used again.
  SamConfig c = shape(2, 16);
  c.sessions_max = 1;
  World w(c);
  speak(w, "c");
  w.retain("c", 3600);
  w.run_until_quiet();
  w.turn({.session = "x", .prompt = prompt_of("x")});
  ASSERT_FALSE(w.sam().sessions().find("t", "c").valid());
  EXPECT_EQ(w.sam().sessions().at(w.sam().sessions().find("t", "x")).retain_until_ns, 0);
  w.run_until_quiet();
  w.advance(3600);
  w.check();
}

TEST_P(Rfc52113Sam, AContextThatWasCompactedAwayLosesItsProtectionAtOnce) {
  // Given a protected session whose next prompt keeps only the first two blocks.
  World w(shape(2, 64));
  speak(w, "c");
  w.retain("c", 300);
  w.run_until_quiet();
  w.turn({.session = "c", .prompt = text('c', 16) + text(9, 4)});
  // Then what it dropped is nobody's and goes before anything claimed.
  const auto keys = index::chain_keys(index::root_key({"t", "", base::Digest{}, kBlock}), prompt_of("c"), kBlock);
  const BlockId dropped = w.sam().blocks().find(keys[3]);
  ASSERT_TRUE(dropped.valid());  // its host copy
  const auto policy = policy::make_policy("rfc52113", {w.sam().blocks(), w.sam().sessions(), w.sam().costs(), kBlock, 100, true}).value();
  EXPECT_GT(policy->rank(dropped, Tier::kHost, w.now()), -1e15);                                // class A
  EXPECT_LT(policy->rank(w.sam().blocks().find(keys[0]), Tier::kHost, w.now()), -4e15);  // class C
  w.check();
}

// --- Published defects ---------------------------------------------------------------------------------------------------------------

// Defect 2: without block_offset one block was protected.
TEST_P(Rfc52113Sam, ProtectionWithoutAnOffsetCoversTheWholeContext) {
  World w(shape(2));
  speak(w, "c");
  w.retain("c", 300);
  speak(w, "b");
  speak(w, "1");
  EXPECT_EQ(w.blocks_in("c", Tier::kDevice), 4);
}

// Defect 3: prefetch reported success whatever happened.
TEST_P(Rfc52113Sam, APrefetchReportsWhatItDid) {
  World w(shape(2, 64));
  EXPECT_EQ(w.hint("nobody", Verb::kPrefetch).status, Outcome::kMissing);
  speak(w, "c");
  ASSERT_EQ(w.hint("c", Verb::kOffload).blocks, 4);
  // Nothing is copied: a load fails its checksum.
  EXPECT_EQ(w.hint("c", Verb::kPrefetch).status, Outcome::kDeferred);
  w.fail_loads = 1;
  auto done = w.run_until_quiet();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].receipt.status, Outcome::kFailed);
  EXPECT_EQ(done[0].receipt.blocks, 0);
  // Too many at once are refused, not swallowed.
  World many(shape(2, 64));
  int rejected = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string name = "s" + std::to_string(i);
    many.turn({.session = name, .prompt = text(i + 1, 9)});
    many.hint(name, Verb::kOffload);
  }
  for (int i = 0; i < 300; ++i) {
    const hint::Receipt r = many.hint("s" + std::to_string(i), Verb::kPrefetch);
    rejected += r.status == Outcome::kRejected ? 1 : 0;
    EXPECT_NE(r.blocks, 1);
  }
  EXPECT_GT(rejected, 0);
}

// Defect 4: a time to live of exactly an hour was never collected.
TEST_P(Rfc52113Sam, AnHourEndsAfterAnHour) {
  for (const double left_s : {2.0, 1.0, 0.0, -3600.0}) {
    World w(shape(1, 4));
    speak(w, "c");
    w.retain("c", 3600);
    speak(w, "b");  // c is in the host tier; a second has passed
    w.advance(3599 - left_s);
    speak(w, "d");  // asks for its place
    EXPECT_EQ(w.blocks_in("c", Tier::kHost) == 4, left_s > 0) << left_s;
    w.check();
  }
}

// Defect 6: anybody could protect, keep or free anybody's session, without limit.
TEST_P(Rfc52113Sam, AnotherTenantsSessionsAreOutOfReach) {
  World w(shape(2));
  w.turn({.session = "c", .prompt = prompt_of("c"), .tenant = "one"});
  for (const Verb verb : {Verb::kRetain, Verb::kEvict, Verb::kEnd, Verb::kOffload, Verb::kPrefetch}) {
    EXPECT_EQ(w.hint("c", verb, "two").status, Outcome::kMissing);
  }
  EXPECT_EQ(w.blocks_in("c", Tier::kDevice, "one"), 4);
  EXPECT_EQ(w.sam().sessions().at(w.sam().sessions().find("one", "c")).retain_until_ns, 0);
}

TEST_P(Rfc52113Sam, OneTenantCannotProtectMoreThanItsShare) {
  // Given places for four contexts, of which a tenant may protect half, and a tenant that asks for everything.
  SamConfig c = shape(4);
  c.retain_tenant_share = 0.5;
  World w(c);
  for (const char* name : {"a", "b", "c"}) {
    speak(w, name);
    const hint::Receipt receipt = w.retain(name, 3600);
    EXPECT_EQ(receipt.status, *name == 'c' ? Outcome::kClipped : Outcome::kApplied) << name;
  }
  // Then what is over its share is as willing to go as anybody's: here it is the least recently used of them.
  w.turn({.session = "d", .prompt = prompt_of("d"), .tenant = "two"});
  w.advance(1);
  w.turn({.session = "e", .prompt = prompt_of("e"), .tenant = "two"});
  EXPECT_EQ(on_device(w, "abc"), "ab");
  EXPECT_EQ(w.blocks_in("d", Tier::kDevice, "two"), 4);
  w.check();
}

// Defect 7: only a session's latest request was known, so concurrent branches overwrote one another.
TEST_P(Rfc52113Sam, AllBranchesOfASessionAreProtectedNotOnlyTheLatest) {
  World w(shape(3));
  const RequestId one = w.arrive({.session = "c", .prompt = text(1, kPrompt)});
  const RequestId two = w.arrive({.session = "c", .prompt = text(2, kPrompt)});
  ASSERT_TRUE(w.admit(one) && w.admit(two));
  w.run(one, 0);
  w.run(two, 0);
  w.finish(one);
  w.finish(two);
  w.retain("c", 300);
  w.advance(1);
  speak(w, "b");
  speak(w, "1");
  EXPECT_EQ(w.blocks_in("c", Tier::kDevice), 8);
  EXPECT_EQ(w.hint("c", Verb::kEnd).blocks, 8);
  w.check();
}

// Defects 5 and 8: zones were walked on allocation, and keep-alive polled every live key each minute.
TEST_P(Rfc52113Sam, ProtectionCostsNothingWhileTimePasses) {
  World w(shape(2, 4096));
  for (int i = 0; i < 500; ++i) {
    const std::string name = "s" + std::to_string(i);
    w.turn({.session = name, .prompt = text(i + 1, kPrompt)});
    w.retain(name, 3600);
  }
  w.run_until_quiet();
  const uint64_t before = w.sam().trace_hash();
  const TimeNs used = w.sam().blocks().at(w.sam().sessions().branch(BranchId(0)).path[0]).last_used_ns;
  for (int i = 0; i < 600; ++i) {
    w.advance(10);
    w.sam().tick(w.now());
    EXPECT_TRUE(w.sam().take_decisions().empty());
  }
  EXPECT_EQ(w.sam().trace_hash(), before);
  EXPECT_EQ(w.sam().blocks().at(w.sam().sessions().branch(BranchId(0)).path[0]).last_used_ns, used);
  w.check();
}

// Defect 9: evicting a parent's id freed every session that named it as its parent, whoever that was and whatever it did.
TEST_P(Rfc52113Sam, EvictingAParentLeavesRunningAndForeignChildrenAlone) {
  World w(shape(4));
  speak(w, "p");
  w.turn({.session = "q", .parent = "p", .prompt = prompt_of("q"), .tenant = "two"});
  const RequestId child = w.arrive({.session = "k", .parent = "p", .prompt = prompt_of("k")});
  ASSERT_TRUE(w.admit(child));
  w.run(child, 0);
  const hint::Receipt gone = w.hint("p", Verb::kEvict);
  EXPECT_EQ(gone.status, Outcome::kApplied);
  EXPECT_EQ(gone.blocks, 4);
  EXPECT_EQ(w.blocks_in("q", Tier::kDevice, "two"), 4);
  w.finish(child);
  EXPECT_EQ(on_device(w, "k"), "k");
  w.check();
}

// Defect 10: a wrong hint could raise in the scheduler.
TEST_P(Rfc52113Sam, AWrongHintIsAnsweredAndChangesNoAnswer) {
  World w(shape(2, 8));
  speak(w, "c");
  std::vector<hint::Action> wrong;
  for (const Verb verb : {Verb::kOffload, Verb::kPrefetch, Verb::kEvict, Verb::kRetain, Verb::kEnd, Verb::kPause, Verb::kResume}) {
    for (const hint::Target target : {hint::Target::kMessages, hint::Target::kTools, hint::Target::kTokens, hint::Target::kBlocks}) {
      for (const int64_t at : {int64_t{-1}, int64_t{1000}, INT64_MAX, INT64_MIN}) {
        hint::Action a;
        a.verb = verb;
        a.target = target;
        a.identity.session_id = "c";
        a.start = at;
        a.end = at;
        wrong.push_back(a);
      }
    }
    hint::Action unknown;
    unknown.verb = verb;
    unknown.identity.session_id = "nobody";
    wrong.push_back(unknown);
  }
  for (const base::DurationNs ttl : {base::DurationNs{-1}, INT64_MIN, INT64_MAX, base::DurationNs{0}}) {
    hint::Action a;
    a.verb = Verb::kRetain;
    a.identity.session_id = "c";
    a.ttl_ns = ttl;
    wrong.push_back(a);
  }
  for (const hint::Action& action : wrong) {
    w.sam().hint("t", action, w.now());
    w.run_until_quiet();
    w.check();
    const Reuse again = w.turn({.session = "c", .prompt = prompt_of("c")});
    ASSERT_EQ(again.prompt, kPrompt);
  }
  // An hour at most, whatever was asked.
  EXPECT_LE(w.sam().sessions().at(w.sam().sessions().find("t", "c")).retain_until_ns, w.now() + 3600 * base::kSecond);
}

}  // namespace
}  // namespace kvtide::session
