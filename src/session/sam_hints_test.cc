// What hints promise when copies fail or take time, turns overlap, ids are used again and budgets end; and that nothing is left behind.
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

class SamHints : public ::testing::TestWithParam<bool> {
 protected:
  static SamConfig shape(int32_t seqs, int32_t device_tokens, int64_t host_blocks) { return config(GetParam(), seqs, device_tokens, host_blocks); }
};
INSTANTIATE_TEST_SUITE_P(Layouts, SamHints, ::testing::Bool(), [](const auto& info) { return info.param ? "Lanes" : "Unified"; });

hint::Receipt only(World& w) {
  auto done = w.sam().take_receipts();
  KV_CHECK(done.size() == 1);
  return done[0].receipt;
}

// --- Copies that fail or take time ---------------------------------------------------------------------------------------------------

TEST(Faults, AFailedCopyThatARequestWaitedForGoesWhenTheRequestIsCancelled) {
  World w(config(true, 2, 256, 64));
  const RequestId busy = w.arrive({.session = "a", .prompt = text(1, 64), .reply = 20});
  ASSERT_TRUE(w.admit(busy));
  w.run(busy, 1);
  // Its blocks reach the other lane through the host tier, but no copy succeeds, and the request goes away before it asks for them.
  const RequestId other = w.arrive({.session = "b", .prompt = text(1, 64) + text(2, 8)});
  w.fail_stores = 100;
  ASSERT_EQ(w.sam().admit(other, w.now()), Sam::Admission::kAdmitted);
  w.run_decisions();
  w.finish(other, Finish::kCancelled);
  EXPECT_EQ(w.sam().blocks().copies_in(Tier::kHost), 0U);
  w.finish(busy);
  w.check();
}

TEST_P(SamHints, AnOffloadWhoseCopiesFailKeepsTheBlocksAndSaysSo) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 50)});
  w.fail_stores = 100;
  const hint::Receipt receipt = w.hint("a", Verb::kOffload);
  EXPECT_EQ(receipt.status, Outcome::kFailed);
  EXPECT_EQ(receipt.blocks, 0);
  EXPECT_EQ(receipt.bytes, 0);
  EXPECT_EQ(receipt.from, "");
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 6);
  w.check();
  w.fail_stores = 0;
  EXPECT_EQ(w.turn({.session = "a", .prompt = text(1, 50) + text(2, 5)}).device, 50);
}

TEST_P(SamHints, AnOffloadMovesOnlyWhatStandsBehindTheLastFailedCopy) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 50)});
  w.fail_stores = 2;
  const hint::Receipt receipt = w.hint("a", Verb::kOffload);
  EXPECT_EQ(receipt.status, Outcome::kClipped);
  EXPECT_EQ(receipt.blocks, 4);
  EXPECT_EQ(receipt.bytes, 400);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 2);
  EXPECT_EQ(w.blocks_in("a", Tier::kHost), 4);
  const Reuse back = w.turn({.session = "a", .prompt = text(1, 50) + text(2, 5)});
  EXPECT_EQ(back.device + back.host, 48);
  w.check();
}

TEST_P(SamHints, AnOffloadIsAnsweredWhenItsCopiesAreComplete) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 50)});
  w.hold_stores = true;
  EXPECT_EQ(w.hint("a", Verb::kOffload).status, Outcome::kDeferred);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 6);
  w.check();
  w.answer_stores();
  const hint::Receipt done = only(w);
  EXPECT_EQ(done.status, Outcome::kApplied);
  EXPECT_EQ(done.blocks, 6);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 0);
  w.check();
}

TEST_P(SamHints, ATurnThatBeginsDuringTheCopiesOfAnOffloadKeepsItsContext) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 50)});
  w.hold_stores = true;
  w.hint("a", Verb::kOffload);
  const RequestId next = w.arrive({.session = "a", .prompt = text(1, 50) + text(2, 5)});
  w.answer_stores();
  EXPECT_EQ(only(w).status, Outcome::kStale);
  ASSERT_TRUE(w.admit(next));
  EXPECT_EQ(w.length(next), 50);
  w.finish(next, Finish::kCancelled);
  w.check();
}

TEST_P(SamHints, AnEvictDuringACopyLeavesNothingBehindWhenTheCopyArrives) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 50)});
  w.hold_stores = true;
  w.hint("a", Verb::kOffload);
  const hint::Receipt gone = w.hint("a", Verb::kEvict);
  EXPECT_EQ(gone.status, Outcome::kApplied);
  EXPECT_EQ(gone.from, "device");
  w.answer_stores();
  EXPECT_EQ(only(w).status, Outcome::kStale);
  EXPECT_EQ(w.sam().blocks().size(), 0U);
  w.check();
}

// --- Turns that overlap --------------------------------------------------------------------------------------------------------------

TEST_P(SamHints, ADeferredEvictTakesWhatExistedWhenItCameAndNotWhatANewerTurnMade) {
  for (const Verb verb : {Verb::kEvict, Verb::kEnd}) {
    World w(shape(4, 4 * 64, 64));
    const RequestId first = w.arrive({.session = "s", .prompt = text(1, 40)});
    ASSERT_TRUE(w.admit(first));
    EXPECT_EQ(w.hint("s", verb).status, Outcome::kDeferred);
    const RequestId second = w.arrive({.session = "s", .prompt = text(2, 24)});
    ASSERT_TRUE(w.admit(second));
    w.run(first, 0);
    w.finish(first);
    const hint::Receipt done = only(w);
    EXPECT_EQ(done.status, Outcome::kClipped);
    EXPECT_EQ(done.blocks, 5);
    EXPECT_EQ(w.blocks_in("s", Tier::kDevice), 0);
    w.run(second, 0);
    w.finish(second);
    EXPECT_EQ(w.blocks_in("s", Tier::kDevice), 3);
    EXPECT_FALSE(w.sam().sessions().at(w.sam().sessions().find("t", "s")).ended);
    w.check();
  }
}

TEST_P(SamHints, ADeferredEndSparesAChildThatCameAfterIt) {
  World w(shape(4, 4 * 64, 64));
  w.turn({.session = "old", .parent = "root", .prompt = text(3, 16)});
  const RequestId root = w.arrive({.session = "root", .prompt = text(1, 40)});
  ASSERT_TRUE(w.admit(root));
  w.hint("root", Verb::kEnd);
  w.turn({.session = "new", .parent = "root", .prompt = text(2, 24)});
  w.run(root, 0);
  w.finish(root);
  EXPECT_EQ(only(w).blocks, 7);
  EXPECT_EQ(w.blocks_in("new", Tier::kDevice), 3);
  EXPECT_EQ(w.blocks_in("old", Tier::kDevice), 0);
  w.check();
}

TEST_P(SamHints, EvictingARootLeavesItsChildrenAlone) {
  World w(shape(4, 4 * 64, 64));
  w.turn({.session = "root", .prompt = text(1, 32)});
  w.turn({.session = "child", .parent = "root", .prompt = text(2, 32)});
  EXPECT_EQ(w.hint("root", Verb::kEvict).blocks, 4);
  EXPECT_EQ(w.blocks_in("child", Tier::kDevice), 4);
  EXPECT_EQ(w.hint("root", Verb::kEnd).blocks, 4);
  EXPECT_EQ(w.sam().blocks().size(), 0U);
  w.check();
}

TEST_P(SamHints, WhatIsSaidOfAForgottenSessionDoesNotReachANewOneOfItsName) {
  SamConfig c = shape(4, 4 * 64, 64);
  c.sessions_max = 1;
  World w(c);
  const RequestId first = w.arrive({.session = "a", .prompt = text(1, 20)});
  ASSERT_TRUE(w.admit(first));
  w.run(first, 0);
  const BranchRef old = w.sam().branch_ref(first);
  w.finish(first);
  w.turn({.session = "b", .prompt = text(2, 20)});  // a is forgotten
  w.turn({.session = "a", .prompt = text(3, 20)});  // in the same places of the tables, at the same turn
  w.sam().note_tool_calls(old, {"shell"});
  EXPECT_EQ(w.sam().sessions().state_name(w.sam().sessions().find("t", "a"), w.now()), "waiting_user");
  w.check();
}

// --- Nothing left behind -------------------------------------------------------------------------------------------------------------

TEST_P(SamHints, TheTailOfAnIdleSequenceGoesWithItsSession) {
  for (const int32_t tokens : {45, 5}) {
    for (const Verb verb : {Verb::kEvict, Verb::kEnd, Verb::kOffload}) {
      World w(shape(3, 3 * 64, 64));
      w.turn({.session = "a", .prompt = text(1, tokens)});
      w.hint("a", verb);
      EXPECT_EQ(w.sam().sequences().cells_used(), 0) << tokens << " " << static_cast<int>(verb);
      w.check();
    }
  }
}

TEST_P(SamHints, ATailBehindBlocksThatASiblingClaimsGoesToo) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "b", .prompt = text(1, 24)});
  w.turn({.session = "a", .prompt = text(1, 24) + text(2, 5)});
  const int64_t before = w.sam().sequences().cells_used();
  w.hint("a", Verb::kEvict);
  EXPECT_EQ(before - w.sam().sequences().cells_used(), 5);
  w.check();
}

TEST_P(SamHints, AnEvictSaysFromWhichTiers) {
  World w(shape(3, 3 * 64, 64));
  w.turn({.session = "both", .prompt = text(1, 40)});
  w.run_until_quiet();
  EXPECT_EQ(w.hint("both", Verb::kEvict).from, "device,host");
  w.turn({.session = "host", .prompt = text(2, 40)});
  w.hint("host", Verb::kOffload);
  EXPECT_EQ(w.hint("host", Verb::kEvict).from, "host");
  EXPECT_EQ(w.hint("host", Verb::kEvict).from, "");
}

TEST(Lost, BlocksWithoutACopyLeaveTheIndexAndTheSessionIsStillKnown) {
  for (const std::string name : {"a", ""}) {
    World w(config(true, 1, 128, 0));
    w.turn({.session = name, .prompt = text(1, 80)});
    w.turn({.session = "other", .prompt = text(2, 80)});
    EXPECT_EQ(w.sam().blocks().size(), 20U);
    w.sam().tick(w.now());
    EXPECT_EQ(w.sam().blocks().size(), 11U);
    w.check();
    // It goes on where it was: the same session, the same branch, and the miss is explained.
    const Reuse back = w.turn({.session = name, .prompt = text(1, 80) + text(3, 16)});
    EXPECT_EQ(back.miss, Miss::kEvicted);
    EXPECT_EQ(w.sam().sessions().count(), 2);
    EXPECT_EQ(w.sam().sessions().at(SessionId(0)).branches.size(), 1U);
    EXPECT_EQ(w.sam().sessions().branch(BranchId(0)).path.size(), 12U);
    EXPECT_TRUE(w.sam().sessions().branch(BranchId(0)).lost.empty());
    w.check();
  }
}

TEST(Lost, AnEditOfALostContextReplacesItsBranchAndAnotherPromptWithTheSameHeadDoesNot) {
  World w(config(true, 1, 128, 0));
  const auto trunk = text(1, 16);
  w.turn({.prompt = trunk + text(2, 64)});
  w.turn({.session = "other", .prompt = text(3, 80)});
  w.sam().tick(w.now());
  w.turn({.prompt = trunk + text(4, 80)});
  EXPECT_EQ(w.sam().sessions().count(), 3) << "only the head is the same: somebody else";

  World e(config(true, 1, 128, 0));
  e.turn({.session = "a", .prompt = text(1, 80), .finish = Finish::kToolCalls});
  e.turn({.session = "other", .prompt = text(3, 80)});
  e.sam().tick(e.now());
  e.turn({.session = "a", .prompt = text(1, 72) + text(4, 24)});
  EXPECT_EQ(e.sam().sessions().at(SessionId(0)).branches.size(), 1U) << "an edit of the last block";
  e.check();
}

TEST(Lost, ATurnThatIsBrokenOffTakesNothingFromALostFrontier) {
  World w(config(true, 1, 128, 0));
  w.turn({.session = "a", .prompt = text(1, 80)});
  w.turn({.session = "other", .prompt = text(2, 80)});
  w.sam().tick(w.now());
  const RequestId id = w.arrive({.session = "a", .prompt = text(1, 80) + text(3, 16)});
  ASSERT_TRUE(w.admit(id));
  w.prefill(id, 40);
  w.finish(id, Finish::kCancelled);
  const Branch& branch = w.sam().sessions().branch(BranchId(0));
  EXPECT_EQ(branch.path.size(), 5U);
  EXPECT_EQ(branch.lost.size(), 5U);
  w.check();
}

// --- Budgets, reasons, victims -------------------------------------------------------------------------------------------------------

TEST_P(SamHints, RetainIsClippedAboveTheBudgetOfTheTenantAndOfTheTree) {
  // 64 blocks of device and 64 of host: 64 for a tenant, 32 for one tree.
  World w(shape(8, 8 * 64, 64));
  for (const char* name : {"a1", "a2", "a3", "a4", "a5"}) w.turn({.session = name, .parent = "a", .prompt = text(name[1], 60)});
  for (const char* name : {"a1", "a2", "a3", "a4"}) EXPECT_EQ(w.retain(name, 60).status, Outcome::kApplied) << name;
  EXPECT_EQ(w.retain("a5", 60).status, Outcome::kClipped);  // 35 of 32
  const auto boost = [&](const std::string& name) {
    return w.sam().sessions().forecast(w.sam().sessions().at(w.sam().sessions().find("t", name)).branches.at(0), w.now()).boost;
  };
  EXPECT_EQ(boost("a1"), 4);
  EXPECT_NEAR(boost("a5"), 1 + 3 * 4.0 / 7, 1e-9);
  // Another tree of the tenant has its own quota, another tenant its own budget.
  w.turn({.session = "b", .prompt = text(90, 60)});
  EXPECT_EQ(w.retain("b", 60).status, Outcome::kApplied);
  w.turn({.session = "c", .prompt = text(91, 60), .tenant = "two"});
  EXPECT_EQ(w.retain("c", 60, "two").status, Outcome::kApplied);
  // A promise that ends makes room for the next one.
  w.hint("a1", Verb::kEnd);
  w.sam().tick(w.now());
  EXPECT_EQ(boost("a5"), 4);
  w.advance(61);
  EXPECT_EQ(boost("a5"), 1);
  w.check();
}

TEST_P(SamHints, APromptKnownUnderAnotherSaltIsAMissOfThatReason) {
  World w(shape(4, 4 * 64, 64));
  w.turn({.session = "a", .prompt = text(1, 40), .salt = "one"});
  EXPECT_EQ(w.turn({.session = "b", .prompt = text(1, 40), .salt = "two"}).miss, Miss::kOtherSalt);
  EXPECT_EQ(w.turn({.session = "c", .prompt = text(1, 40), .tenant = "else", .salt = "two"}).miss, Miss::kNeverStored);
  EXPECT_EQ(w.turn({.session = "d", .prompt = text(2, 40), .salt = "two"}).miss, Miss::kNeverStored);
}

TEST_P(SamHints, AHostCopyOfABlockThatWasComputedAgainIsGivenUpFirst) {
  World w(config(GetParam(), 4, 4 * 64, 8, "lru"));
  w.turn({.session = "b", .prompt = text(2, 16)});
  w.hint("b", Verb::kOffload);
  w.advance(1);
  w.turn({.session = "a", .prompt = text(1, 48)});
  w.hint("a", Verb::kOffload);
  w.advance(1);
  // The last block of an exact repetition is computed: at least one token must be.
  w.turn({.session = "a", .prompt = text(1, 48)});
  ASSERT_EQ(w.blocks_in("a", Tier::kHost), 6);
  w.advance(1);
  w.turn({.session = "c", .prompt = text(3, 8)});
  w.turn({.session = "c", .prompt = text(3, 8) + text(4, 2)});
  w.hint("c", Verb::kOffload);
  EXPECT_EQ(w.blocks_in("b", Tier::kHost), 2);
  EXPECT_EQ(w.blocks_in("a", Tier::kHost), 5);
  w.check();
}

}  // namespace
}  // namespace kvtide::session
