// Scenarios, for both layouts of a device.
#include <gtest/gtest.h>

#include "session/testing/world.h"

namespace kvtide::session {
namespace {

using hint::Outcome;
using hint::Verb;
using testing::reply;
using testing::text;
using testing::World;
using namespace testing;

class BothLayouts : public ::testing::TestWithParam<bool> {
 protected:
  static SamConfig shape(int32_t seqs, int32_t device_tokens, int64_t host_blocks) { return config(GetParam(), seqs, device_tokens, host_blocks); }
};
INSTANTIATE_TEST_SUITE_P(Layouts, BothLayouts, ::testing::Bool(), [](const auto& info) { return info.param ? "Lanes" : "Unified"; });

TEST_P(BothLayouts, TheNextTurnOfASessionComputesOnlyWhatIsNew) {
  World w(shape(4, 4 * 128, 64));
  const auto first = text(1, 40);
  w.turn({.session = "a", .prompt = first, .reply = 5});
  const Reuse second = w.turn({.session = "a", .prompt = first + reply(5) + text(2, 10), .reply = 3});
  EXPECT_EQ(second.device, 45);
  EXPECT_EQ(second.miss, Miss::kNone);
  w.check();
}

TEST_P(BothLayouts, ASessionWithoutAnIdIsRecognisedByItsLineage) {
  World w(shape(4, 4 * 128, 64));
  const auto first = text(1, 40);
  w.turn({.prompt = first, .reply = 4});
  w.turn({.prompt = text(5, 40), .reply = 4});
  w.turn({.prompt = first + reply(4) + text(2, 20), .reply = 4});
  EXPECT_EQ(w.sam().sessions().count(), 2);
  w.check();
}

TEST_P(BothLayouts, APromptThatRepeatsExactlyComputesOneToken) {
  World w(shape(2, 2 * 128, 64));
  w.turn({.session = "a", .prompt = text(1, 40)});
  EXPECT_EQ(w.turn({.session = "a", .prompt = text(1, 40)}).device, 39);
  w.check();
}

TEST_P(BothLayouts, AnEvictedContextComesBackFromTheHostTier) {
  World w(shape(2, 2 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 48)});
  w.turn({.session = "b", .prompt = text(2, 60)});
  w.turn({.session = "c", .prompt = text(3, 60)});
  w.turn({.session = "d", .prompt = text(4, 60)});
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 0);
  const Reuse back = w.turn({.session = "a", .prompt = text(1, 48) + text(5, 8)});
  EXPECT_EQ(back.host, 48);
  EXPECT_EQ(back.device, 0);
  w.check();
}

TEST_P(BothLayouts, ACorruptCopyIsAMissAndTheRestIsRecomputed) {
  World w(shape(2, 2 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 48)});
  w.turn({.session = "b", .prompt = text(2, 60)});
  w.turn({.session = "c", .prompt = text(3, 60)});
  w.fail_loads = 1;
  const Reuse back = w.turn({.session = "a", .prompt = text(1, 48) + text(5, 8)});
  EXPECT_EQ(back.host, 0);
  EXPECT_EQ(back.miss, Miss::kFailedLoad);
  EXPECT_EQ(w.sam().counters().failed_loads, 1);
  w.check();
  EXPECT_EQ(w.turn({.session = "a", .prompt = text(1, 48) + text(5, 8) + text(6, 1)}).device, 56);
}

TEST_P(BothLayouts, AFailedWriteBackLosesTheCopyAndNothingElse) {
  World w(shape(2, 2 * 64, 64));
  w.fail_stores = 3;
  w.turn({.session = "a", .prompt = text(1, 48)});
  w.turn({.session = "b", .prompt = text(2, 60)});
  w.turn({.session = "c", .prompt = text(3, 60)});
  EXPECT_EQ(w.sam().counters().failed_copies_out, 3);
  w.check();
  w.turn({.session = "a", .prompt = text(1, 48) + text(5, 8)});
  w.check();
}

TEST_P(BothLayouts, AnotherTenantNeverMeetsTheSameBlocks) {
  World w(shape(4, 4 * 128, 64));
  w.turn({.session = "a", .prompt = text(1, 40), .tenant = "one"});
  const Reuse other = w.turn({.session = "a", .prompt = text(1, 40), .tenant = "two"});
  EXPECT_EQ(other.device + other.host, 0);
  EXPECT_EQ(other.compulsory, 40);
  EXPECT_EQ(w.hint("a", Verb::kEvict, "two").blocks, 5);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice, "one"), 5);
}

TEST_P(BothLayouts, ATailWithoutABlockIsNeverTakenForAnotherTenants) {
  World w(shape(1, 64, 0));
  w.turn({.session = "a", .prompt = text(1, 5), .tenant = "one"});
  EXPECT_EQ(w.turn({.session = "a", .prompt = text(1, 7), .tenant = "two"}).device, 0);
  w.check();
}

TEST_P(BothLayouts, AnOffloadThatDoesNotFitTheHostTierMovesNothing) {
  World w(shape(2, 2 * 128, 8));
  w.turn({.session = "a", .prompt = text(1, 100)});
  w.run_until_quiet();
  EXPECT_EQ(w.hint("a", Verb::kOffload).status, Outcome::kFailed);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 12);
  EXPECT_EQ(w.turn({.session = "a", .prompt = text(1, 100) + text(2, 4)}).device, 100);
  w.check();
}

TEST_P(BothLayouts, ACancelledTurnTakesNothingFromTheFrontier) {
  World w(shape(3, 3 * 128, 64));
  w.turn({.session = "a", .prompt = text(1, 64)});
  w.hint("a", Verb::kOffload);
  const RequestId id = w.arrive({.session = "a", .prompt = text(1, 64) + text(2, 8)});
  w.fail_loads = 1;
  ASSERT_TRUE(w.admit(id));
  w.finish(id, Finish::kCancelled);
  w.run_until_quiet();
  w.hint("a", Verb::kEnd);
  EXPECT_EQ(w.sam().blocks().size(), 0U);
  w.check();
}

TEST_P(BothLayouts, OffloadMovesTheContextAndPrefetchBringsItBackBeforeTheTurn) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "coder", .parent = "leader", .prompt = text(1, 50), .finish = Finish::kToolCalls});
  const hint::Receipt down = w.hint("coder", Verb::kOffload);
  EXPECT_EQ(down.status, Outcome::kApplied);
  EXPECT_EQ(down.blocks, 6);
  EXPECT_EQ(down.bytes, 600);
  EXPECT_EQ(w.blocks_in("coder", Tier::kDevice), 0);
  EXPECT_EQ(w.blocks_in("coder", Tier::kHost), 6);
  EXPECT_EQ(w.hint("coder", Verb::kPrefetch).status, Outcome::kDeferred);
  const auto done = w.run_until_quiet();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].receipt.status, Outcome::kApplied);
  EXPECT_EQ(done[0].receipt.blocks, 6);
  EXPECT_EQ(w.blocks_in("coder", Tier::kDevice), 6);
  EXPECT_EQ(w.turn({.session = "coder", .prompt = text(1, 50) + text(2, 5)}).device, 48);
  EXPECT_EQ(w.hint("coder", Verb::kPrefetch).reason, "already on the device");
  w.check();
}

TEST_P(BothLayouts, AnOffloadDuringATurnWaitsForItAndANewerTurnCancelsIt) {
  World w(shape(3, 3 * 64, 64));
  const RequestId turn = w.arrive({.session = "a", .prompt = text(1, 40)});
  ASSERT_TRUE(w.admit(turn));
  EXPECT_EQ(w.hint("a", Verb::kOffload).status, Outcome::kDeferred);
  w.run(turn, 0);
  w.finish(turn);
  auto done = w.sam().take_receipts();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].receipt.status, Outcome::kApplied);
  EXPECT_EQ(done[0].receipt.blocks, 5);

  const RequestId second = w.arrive({.session = "a", .prompt = text(1, 40) + text(2, 4)});
  ASSERT_TRUE(w.admit(second));
  EXPECT_EQ(w.hint("a", Verb::kOffload).status, Outcome::kDeferred);
  const RequestId third = w.arrive({.session = "a", .prompt = text(7, 20)});
  done = w.sam().take_receipts();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].receipt.status, Outcome::kStale);
  for (RequestId id : {second, third}) w.finish(id, Finish::kCancelled);
  w.check();
}

TEST_P(BothLayouts, EvictFreesWhatNobodyElseClaimsAndKeepsWhatSiblingsShare) {
  World w(shape(4, 4 * 64, 64));
  const auto trunk = text(1, 24);
  w.turn({.session = "x", .parent = "p", .prompt = trunk + text(2, 16)});
  w.turn({.session = "y", .parent = "p", .prompt = trunk + text(3, 16)});
  w.run_until_quiet();
  const hint::Receipt gone = w.hint("x", Verb::kEvict);
  EXPECT_EQ(gone.status, Outcome::kApplied);
  EXPECT_EQ(gone.shared_kept, 3);
  EXPECT_EQ(gone.blocks, GetParam() ? 4 : 4);  // two of its own in each tier
  EXPECT_EQ(w.turn({.session = "y", .prompt = trunk + text(3, 16) + text(4, 4)}).device, 40);
  EXPECT_EQ(w.turn({.session = "x", .prompt = trunk + text(2, 16)}).compulsory, 0);
  w.check();
}

TEST_P(BothLayouts, AnIdUsedAfterItsEndIsANewGenerationAndOldActionsAreStale) {
  World w(shape(4, 4 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 40)});
  EXPECT_EQ(w.hint("a", Verb::kEnd).generation, 1U);
  w.turn({.session = "a", .prompt = text(2, 40)});
  EXPECT_EQ(w.hint("a", Verb::kRetain).generation, 2U);
  EXPECT_EQ(w.hint("nobody", Verb::kPrefetch).status, Outcome::kMissing);
}

TEST_P(BothLayouts, EndingARootEndsItsWholeTree) {
  World w(shape(6, 6 * 64, 64));
  w.turn({.session = "child", .parent = "root", .prompt = text(2, 32)});  // a child may appear before its parent
  w.turn({.session = "root", .prompt = text(1, 32)});
  w.turn({.session = "grandchild", .parent = "child", .prompt = text(3, 32)});
  const hint::Receipt end = w.hint("root", Verb::kEnd);
  EXPECT_EQ(end.blocks, 12);
  EXPECT_EQ(w.sam().blocks().size(), 0U);
  w.check();
}

TEST_P(BothLayouts, AfterCompactionTheLostSuffixIsTheFirstToGo) {
  World w(shape(3, 3 * 64, 4));
  w.turn({.session = "a", .prompt = text(1, 16) + text(2, 40)});
  w.advance(5);
  w.turn({.session = "b", .prompt = text(3, 24)});
  w.advance(5);
  w.turn({.session = "a", .prompt = text(1, 16) + text(4, 8)});  // compacted: shorter, with the same head
  EXPECT_EQ(w.sam().sessions().at(w.sam().sessions().find("t", "a")).branches.size(), 1U);
  EXPECT_EQ(w.sam().sessions().branch(BranchId(0)).path.size(), 3U);
  w.check();
}

TEST_P(BothLayouts, ASubAgentUnderTheSameIdDoesNotReplaceTheBranchThatWaitsForIt) {
  World w(shape(4, 4 * 64, 64));
  w.turn({.session = "cc", .prompt = text(1, 48), .finish = Finish::kToolCalls});
  w.turn({.session = "cc", .prompt = text(9, 16)});
  EXPECT_EQ(w.turn({.session = "cc", .prompt = text(1, 48) + text(2, 8)}).device, 48);
  w.check();
}

TEST_P(BothLayouts, ARequestThatCannotGetASequenceWaitsAndIsAdmittedLater) {
  World w(shape(1, 64, 16));
  const RequestId first = w.arrive({.session = "a", .prompt = text(1, 40)});
  const RequestId second = w.arrive({.session = "b", .prompt = text(2, 40)});
  ASSERT_TRUE(w.admit(first));
  EXPECT_FALSE(w.admit(second));
  w.run(first, 0);
  w.finish(first);
  EXPECT_TRUE(w.admit(second));
  w.check();
  w.finish(second, Finish::kCancelled);
  w.check();
}

TEST_P(BothLayouts, SiblingsWaitForATrunkThatIsBeingComputedAndThenShareIt) {
  World w(shape(4, 4 * 128, 64));
  const auto trunk = text(1, 64);
  const RequestId first = w.arrive({.session = "s1", .prompt = trunk + text(2, 8)});
  const RequestId second = w.arrive({.session = "s2", .prompt = trunk + text(3, 8)});
  ASSERT_TRUE(w.admit(first));
  w.prefill(first, 16);
  EXPECT_FALSE(w.admit(second));
  w.run(first, 2);
  EXPECT_TRUE(w.admit(second));
  EXPECT_EQ(w.length(second), 64);
  w.check();
}

TEST_P(BothLayouts, HintsOffAnswersAndChangesNothing) {
  SamConfig c = shape(2, 2 * 64, 16);
  c.hints = false;
  World w(c);
  w.turn({.session = "a", .prompt = text(1, 40)});
  EXPECT_EQ(w.hint("a", Verb::kEvict).status, Outcome::kUnsupported);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 5);
}

TEST_P(BothLayouts, AModelWithoutReuseServesAndKeepsNothing) {
  SamConfig c = shape(2, 2 * 64, 0);
  c.device.reuse = false;
  World w(c);
  w.turn({.session = "a", .prompt = text(1, 40), .reply = 4});
  const Reuse again = w.turn({.session = "a", .prompt = text(1, 40), .reply = 4});
  EXPECT_EQ(again.device, 0);
  EXPECT_EQ(w.hint("a", Verb::kOffload).status, Outcome::kUnsupported);
  w.check();
}

TEST_P(BothLayouts, SessionsBeyondTheLimitAreForgottenIdleOnesFirst) {
  SamConfig c = shape(2, 2 * 64, 64);
  c.sessions_max = 3;
  World w(c);
  for (int i = 0; i < 10; ++i) {
    w.advance(1);
    w.turn({.session = "s" + std::to_string(i), .prompt = text(i + 1, 24)});
  }
  EXPECT_EQ(w.sam().sessions().count(), 3);
  EXPECT_TRUE(w.sam().sessions().find("t", "s9").valid());
  w.check();
}

TEST_P(BothLayouts, TheSameEventsGiveTheSameDecisions) {
  uint64_t hashes[2];
  for (uint64_t& hash : hashes) {
    World w(shape(3, 3 * 64, 16));
    for (int i = 0; i < 30; ++i) {
      w.advance(0.5);
      w.turn({.session = "s" + std::to_string(i % 5), .prompt = text(i % 5 + 1, 24 + i)});
      if (i % 7 == 0) w.hint("s" + std::to_string(i % 5), Verb::kOffload);
    }
    hash = w.sam().trace_hash();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_NE(hashes[0], 0U);
}

TEST(Unified, TwoSessionsShareTheCellsOfTheirCommonPrefix) {
  World w(config(false, 4, 256, 0));
  const auto trunk = text(1, 64);
  w.turn({.session = "a", .prompt = trunk + text(2, 8)});
  const int64_t before = w.sam().sequences().cells_used();
  const Reuse second = w.turn({.session = "b", .prompt = trunk + text(3, 8)});
  EXPECT_EQ(second.device, 64);
  EXPECT_EQ(w.sam().sequences().cells_used(), before + 8);
  w.check();
}

TEST(Unified, APrefixOfABusySequenceIsSharedToo) {
  World w(config(false, 4, 256, 0));
  const RequestId busy = w.arrive({.session = "a", .prompt = text(1, 64), .reply = 20});
  ASSERT_TRUE(w.admit(busy));
  w.run(busy, 3);
  EXPECT_EQ(w.turn({.session = "b", .prompt = text(1, 64) + text(2, 8)}).device, 64);
  w.finish(busy);
  w.check();
}

TEST(Unified, SequencesThatComputedTheSameBlocksAtOnceEndUpSharingThem) {
  World w(config(false, 4, 256, 0));
  // Too little at stake to wait for one another.
  const RequestId a = w.arrive({.session = "a", .prompt = text(1, 24)});
  const RequestId b = w.arrive({.session = "b", .prompt = text(1, 24)});
  ASSERT_TRUE(w.admit(a) && w.admit(b));
  w.run(a, 0);
  w.run(b, 0);
  EXPECT_EQ(w.sam().sequences().cells_used(), 24);
  EXPECT_EQ(w.sam().counters().dedup_blocks, 3);
  w.finish(a);
  w.finish(b);
  w.check();
}

TEST(Unified, BlocksThatTwoRequestsLoadAreOnTheDeviceOnce) {
  World w(config(false, 4, 256, 64));
  w.turn({.session = "a", .prompt = text(1, 64)});
  w.hint("a", Verb::kOffload);
  const RequestId b = w.arrive({.session = "b", .prompt = text(1, 64) + text(2, 8)});
  const RequestId c = w.arrive({.session = "c", .prompt = text(1, 64) + text(3, 8)});
  ASSERT_EQ(w.sam().admit(b, w.now()), Sam::Admission::kAdmitted);
  ASSERT_EQ(w.sam().admit(c, w.now()), Sam::Admission::kAdmitted);
  w.load(b);
  w.load(c);
  EXPECT_EQ(w.sam().sequences().cells_used(), 64);
  w.check();
  for (RequestId id : {b, c}) w.finish(id, Finish::kCancelled);
}

TEST(Unified, ARequestThatMustWaitDoesNotEmptyTheDevice) {
  World w(config(false, 4, 256, 0));
  w.turn({.session = "idle", .prompt = text(1, 64)});
  const RequestId busy = w.arrive({.session = "busy", .prompt = text(2, 100), .reply = 20});
  ASSERT_TRUE(w.admit(busy));
  w.run(busy, 1);
  const RequestId big = w.arrive({.session = "big", .prompt = text(3, 200), .reply = 20});
  EXPECT_FALSE(w.admit(big));
  EXPECT_EQ(w.blocks_in("idle", Tier::kDevice), 8);
  for (RequestId id : {busy, big}) w.finish(id, Finish::kCancelled);
}

TEST(Unified, DecodingEvictsIdleBlocksAndTheBudgetHolds) {
  World w(config(false, 4, 128, 64));
  w.turn({.session = "idle", .prompt = text(1, 64)});
  const RequestId busy = w.arrive({.session = "busy", .prompt = text(2, 40), .reply = 60});
  ASSERT_TRUE(w.admit(busy));
  w.run(busy, 60);
  w.check();
  w.finish(busy);
  EXPECT_LT(w.blocks_in("idle", Tier::kDevice), 8);
  EXPECT_GE(w.blocks_in("idle", Tier::kHost), 8 - w.blocks_in("idle", Tier::kDevice));
}

TEST(Unified, CuttingIntoABlockThatOthersHoldKeepsTheBudget) {
  // Given two sessions on the same two blocks, one of them running, and a device without a free cell
  World w(config(false, 4, 32, 0));
  w.turn({.session = "b", .prompt = text(1, 16)});
  const RequestId a = w.arrive({.session = "a", .prompt = text(1, 16), .reply = 8});
  ASSERT_TRUE(w.admit(a));
  while (w.prefill(a, 16)) {
  }
  const RequestId c = w.arrive({.session = "c", .prompt = text(3, 7), .reply = 1});
  ASSERT_TRUE(w.admit(c));
  // When the idle one repeats its prompt, so that it must compute the last token of the second block again
  const RequestId b = w.arrive({.session = "b", .prompt = text(1, 16)});
  // Then it waits for room, and nothing was promised twice
  EXPECT_FALSE(w.admit(b));
  w.check();
}

TEST(Unified, WhenNothingIsIdleSomebodyMustBePreemptedAndResumesLater) {
  World w(config(false, 4, 96, 64));
  const RequestId a = w.arrive({.session = "a", .prompt = text(1, 40), .reply = 40});
  const RequestId b = w.arrive({.session = "b", .prompt = text(2, 40), .reply = 40});
  ASSERT_TRUE(w.admit(a) && w.admit(b));
  while (w.prefill(a, 8)) {
  }
  while (w.prefill(b, 8)) {
  }
  int made = 0;
  while (w.decode(a, 9000 + made)) ++made;
  EXPECT_GT(made, 0);
  w.preempt(b);
  EXPECT_TRUE(w.decode(a, 9000 + made));
  w.finish(a);
  ASSERT_TRUE(w.admit(b));
  w.run(b, 4);
  w.finish(b);
  w.check();
}

TEST(Lanes, AnotherSessionsPrefixOnABusyLaneArrivesThroughTheHostTier) {
  World w(config(true, 2, 256, 64));
  const RequestId busy = w.arrive({.session = "a", .prompt = text(1, 64), .reply = 20});
  ASSERT_TRUE(w.admit(busy));
  w.run(busy, 1);
  EXPECT_EQ(w.turn({.session = "b", .prompt = text(1, 64) + text(2, 8)}).host, 64);
  w.finish(busy);
  w.check();
}

TEST(Affinity, KeepsTheSessionThatComesBackSoonWhereLruKeepsTheNewest) {
  for (const auto& [policy, kept] : {std::pair{"lru", 8}, std::pair{"affinity", 57}}) {
    World w(config(true, 2, 128, 8, policy));
    w.turn({.session = "soon", .prompt = text(1, 57), .finish = Finish::kToolCalls});
    w.pause("soon", 4);
    w.advance(1);
    for (int i = 0; i < 3; ++i) {
      const std::string name = "person" + std::to_string(i);
      w.turn({.session = name, .prompt = text(2 + i, 57)});
      w.pause(name, 600);
      w.advance(1);
    }
    const Reuse back = w.turn({.session = "soon", .prompt = text(1, 57) + text(9, 2)});
    EXPECT_EQ(back.device + back.host, kept) << policy;
    w.check();
  }
}

TEST(Explain, TellsEvictedFromNeverStored) {
  World w(config(true, 1, 128, 0));
  w.turn({.session = "a", .prompt = text(1, 80)});
  w.turn({.session = "b", .prompt = text(2, 80)});
  const Reuse lost = w.turn({.session = "a", .prompt = text(1, 80) + text(3, 20)});
  EXPECT_EQ(lost.miss, Miss::kEvicted);
  EXPECT_EQ(lost.loss, index::Loss::kCapacity);
  EXPECT_EQ(lost.compulsory, 20);
  EXPECT_EQ(w.turn({.session = "c", .prompt = text(7, 80)}).miss, Miss::kNeverStored);
}

}  // namespace
}  // namespace kvtide::session
