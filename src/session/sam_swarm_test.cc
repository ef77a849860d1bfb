// The six moments of an agent swarm's life, as openJiuwen walks through them: plan over a common prefix, sub-agent call, tool wait,
// compaction, end, resume. Each in both layouts, beside other sessions that want the same room, and with what must not happen.
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

constexpr int32_t kSeqTokens = 64;
constexpr int64_t kBlockBytes = 100;

/// System prompt and tools, the same for a whole team: four blocks.
std::vector<int32_t> trunk() { return text(1, 32); }
/// A member's prompt: the trunk and two blocks of its own.
std::vector<int32_t> member(int32_t seed) { return trunk() + text(seed, 16); }

class Swarm : public ::testing::TestWithParam<bool> {
 protected:
  static bool lanes() { return GetParam(); }
  static World world(int32_t seqs, int64_t host_blocks = 64) { return World(config(lanes(), seqs, seqs * kSeqTokens, host_blocks)); }
};
INSTANTIATE_TEST_SUITE_P(Layouts, Swarm, ::testing::Bool(), [](const auto& info) { return info.param ? "Lanes" : "Unified"; });

hint::Receipt only(const std::vector<Sam::CompletedReceipt>& done) {
  KV_CHECK(done.size() == 1);
  return done[0].receipt;
}

/// Blocks [from, end of `prompt`) of the default tenant that have a copy in `tier`, whoever claims them.
int64_t copies(World& w, const std::vector<int32_t>& prompt, Tier tier, size_t from = 0) {
  const auto keys = index::chain_keys(index::root_key({"t", "", base::Digest{}, kBlock}), prompt, kBlock);
  int64_t found = 0;
  for (size_t i = from; i < keys.size(); ++i) {
    const BlockId id = w.sam().blocks().find(keys[i]);
    found += id.valid() && w.sam().blocks().at(id).copy(tier).present() ? 1 : 0;
  }
  return found;
}

size_t distinct(World& w, Tier tier) { return w.sam().blocks().copies_in(tier); }

void expect_answer(const hint::Receipt& receipt, Outcome status, int64_t blocks, const std::string& reason) {
  EXPECT_EQ(hint::outcome_name(receipt.status), hint::outcome_name(status));
  EXPECT_EQ(receipt.blocks, blocks);
  EXPECT_EQ(receipt.bytes, blocks * kBlockBytes);
  EXPECT_EQ(receipt.reason, reason);
}

void expect_moved(const hint::Receipt& receipt, int64_t blocks, const std::string& from, const std::string& to) {
  expect_answer(receipt, Outcome::kApplied, blocks, "");
  EXPECT_EQ(receipt.from, from);
  EXPECT_EQ(receipt.to, to);
}

void expect_reuse(const Reuse& reuse, int32_t device, int32_t host, int32_t compulsory, Miss miss) {
  EXPECT_EQ(reuse.device, device);
  EXPECT_EQ(reuse.host, host);
  EXPECT_EQ(reuse.compulsory, compulsory);
  EXPECT_EQ(static_cast<int>(reuse.miss), static_cast<int>(miss));
}

/// Nothing of a prompt was computed but its last `fresh` tokens, and nothing waited for a load.
void expect_warm(const Reuse& reuse, int32_t fresh) { expect_reuse(reuse, reuse.prompt - fresh, 0, fresh, Miss::kNone); }

// --- 1. Plan with a shared common prefix ---------------------------------------------------------------------------------------------

TEST_P(Swarm, PlanTheTeamComputesItsCommonPrefixOnceAndNoMemberTakesItFromTheOthers) {
  // Given a leader that planned, and nobody of another tenant who could profit from it.
  World w = world(5);
  EXPECT_EQ(w.turn({.session = "leader", .prompt = member(2)}).compulsory, 48);
  EXPECT_EQ(w.turn({.session = "leader", .prompt = member(2), .tenant = "else"}).compulsory, 48);

  // When its teammates start over the same system prompt and tools.
  for (const auto& [name, seed] : {std::pair{"coder", 3}, std::pair{"tester", 4}}) {
    const Reuse reuse = w.turn({.session = name, .parent = "leader", .prompt = member(seed)});
    // Then each computes its own two blocks only: shared in place, or, as lanes cannot share, brought over the host tier.
    expect_reuse(reuse, lanes() ? 0 : 32, lanes() ? 32 : 0, 16, Miss::kNeverStored);
  }
  EXPECT_EQ(distinct(w, Tier::kDevice), 6U + 4U + 3 * 2U);
  EXPECT_EQ(w.sam().sequences().cells_used(), lanes() ? 4 * 48 : 48 + 32 + 3 * 16) << "unified: the trunk is held once";
  EXPECT_EQ(w.sam().counters().evicted_device_blocks, 0);

  // When one teammate goes.
  const hint::Receipt gone = w.hint("tester", Verb::kEvict);
  // Then only what was its own goes, and the others still have everything where it was.
  expect_moved(gone, 2, "device", "");
  EXPECT_EQ(gone.shared_kept, 4);
  for (const char* name : {"leader", "coder"}) EXPECT_EQ(w.blocks_in(name, Tier::kDevice), 6) << name;
  EXPECT_EQ(copies(w, member(4), Tier::kDevice, 4), 0);
  w.check();

  // The same when it is the leader, who computed the prefix.
  EXPECT_EQ(w.hint("leader", Verb::kEvict).shared_kept, 4);
  expect_warm(w.turn({.session = "coder", .prompt = member(3) + text(5, 8)}), 8);
  // The last claim takes it away, from this tenant only.
  EXPECT_EQ(w.hint("coder", Verb::kEvict).shared_kept, 0);
  EXPECT_EQ(copies(w, trunk(), Tier::kDevice) + copies(w, trunk(), Tier::kHost), 0);
  EXPECT_EQ(w.blocks_in("leader", Tier::kDevice, "else"), 6);
  EXPECT_EQ(w.sam().blocks().size(), 6U);
  w.check();
}

TEST_P(Swarm, PlanPressureTakesAMembersOwnPartAndNotTheTrunk) {
  // Given a team that uses all sequences.
  World w = world(3);
  const std::pair<const char*, int32_t> team[] = {{"leader", 2}, {"coder", 3}, {"tester", 4}};
  for (const auto& [name, seed] : team) w.turn({.session = name, .prompt = member(seed)});
  // When an outsider needs one of them.
  w.turn({.session = "outsider", .prompt = text(9, 40)});
  // Then one member pays with its own two blocks, which are in the host tier, and the trunk is on the device for all.
  int64_t here = 0;
  for (const auto& [name, seed] : team) here += w.blocks_in(name, Tier::kDevice);
  EXPECT_EQ(here, 3 * 6 - 2);
  EXPECT_EQ(copies(w, trunk(), Tier::kDevice), 4);
  for (const auto& [name, seed] : team) {
    const Reuse next = w.turn({.session = name, .prompt = member(seed) + text(5, 8)});
    EXPECT_EQ(next.device + next.host, 48) << name;
    EXPECT_EQ(next.compulsory, 8) << name;
  }
  w.check();
}

// --- 2. Sub-agent call, then prefetch ------------------------------------------------------------------------------------------------

TEST_P(Swarm, SubAgentTheLeaderIsParkedWhileTheChildRunsAndIsBackBeforeItsNextRequest) {
  for (const bool told : {true, false}) {
    // Given a leader that calls a sub-agent, on a device for two, and is parked: by its client, or by pressure from others.
    World w = world(2);
    w.turn({.session = "leader", .prompt = text(1, 40), .reply = 8, .finish = Finish::kToolCalls});
    EXPECT_EQ(w.hint("child", Verb::kPrefetch).status, Outcome::kMissing) << "the client sends it before the child's first turn";
    if (told) expect_moved(w.hint("leader", Verb::kOffload), 6, "device", "host");
    const RequestId child = w.arrive({.session = "child", .parent = "leader", .prompt = text(2, 40), .reply = 8});
    ASSERT_TRUE(w.admit(child));
    w.run(child, 0);
    const RequestId other = w.arrive({.session = "other", .prompt = text(3, 48)});
    ASSERT_TRUE(w.admit(other));
    w.run(other, 0);
    EXPECT_EQ(w.blocks_in("leader", Tier::kDevice), 0);
    EXPECT_EQ(w.blocks_in("leader", Tier::kHost), 6);
    EXPECT_EQ(w.sam().counters().evicted_device_blocks, told ? 0 : 6);

    // When a prefetch comes too early, while both sequences are in use.
    EXPECT_EQ(w.hint("leader", Verb::kPrefetch).status, Outcome::kDeferred);
    // Then it says so, and neither turn loses anything.
    expect_answer(only(w.run_until_quiet()), Outcome::kFailed, 0, "no room on the device");
    EXPECT_EQ(w.length(child), 40);
    EXPECT_EQ(w.length(other), 48);

    // When the child is done and gone, and the leader is announced.
    w.finish(child);
    w.finish(other);
    EXPECT_EQ(w.hint("child", Verb::kEvict).status, Outcome::kApplied);
    EXPECT_EQ(w.hint("leader", Verb::kPrefetch).status, Outcome::kDeferred);
    // Then all of it is back before its request, which computes what is new, and the bystander has not paid for it.
    expect_moved(only(w.run_until_quiet()), 6, "host", "device");
    EXPECT_EQ(w.sam().counters().prefetched_blocks, 6);
    EXPECT_EQ(w.blocks_in("other", Tier::kDevice), 6);
    expect_warm(w.turn({.session = "leader", .prompt = text(1, 40) + reply(8) + text(4, 12)}), 12);
    EXPECT_EQ(w.sam().counters().loaded_blocks, 0) << "no request loaded anything itself";
    EXPECT_EQ(w.sam().counters().evicted_device_blocks, told ? 0 : 6);
    w.check();
  }
}

TEST_P(Swarm, SubAgentParkingTheLeaderLeavesARunningChildWhereItIs) {
  // Given two children that share the leader's prefix, one at work and one idle.
  World w = world(4);
  w.turn({.session = "leader", .prompt = member(2), .finish = Finish::kToolCalls});
  w.turn({.session = "idle", .parent = "leader", .prompt = member(3)});
  const RequestId busy = w.arrive({.session = "busy", .parent = "leader", .prompt = member(4), .reply = 8});
  ASSERT_TRUE(w.admit(busy));
  w.run(busy, 2);
  w.turn({.session = "other", .prompt = text(8, 48)});
  // When the root is offloaded, which is about its tree.
  const hint::Receipt down = w.hint("leader", Verb::kOffload);
  // Then what the running child holds stays, and the receipt counts only what really left.
  expect_answer(down, Outcome::kClipped, 4, "a child of this session is running");
  EXPECT_EQ(down.shared_kept, 8);  // the trunk, for each of the two
  EXPECT_EQ(w.blocks_in("leader", Tier::kDevice), 4);
  EXPECT_EQ(copies(w, member(3), Tier::kDevice, 4), 0);
  EXPECT_EQ(w.length(busy), 50);
  EXPECT_EQ(w.blocks_in("other", Tier::kDevice), 6) << "another root";
  w.finish(busy);
  expect_warm(w.turn({.session = "busy", .prompt = member(4) + reply(2) + text(5, 6)}), 6);
  w.check();
}

// --- 3. Tool wait, offload, prefetch on return ---------------------------------------------------------------------------------------

TEST_P(Swarm, ToolTheContextGoesDownDuringTheCallAndIsBackBeforeTheNextRequest) {
  // Given a session whose turn ends with a tool call, and whose client asks for the offload while it still runs.
  World w = world(3);
  const RequestId turn = w.arrive({.session = "a", .prompt = text(1, 40), .reply = 8});
  ASSERT_TRUE(w.admit(turn));
  w.run(turn, 4);
  EXPECT_EQ(w.hint("a", Verb::kOffload).status, Outcome::kDeferred);
  EXPECT_EQ(w.length(turn), 44) << "a running turn keeps its context";
  for (int32_t i = 4; i < 8; ++i) ASSERT_TRUE(w.decode(turn, 9000 + i));
  w.hold_stores = true;
  w.finish(turn, Finish::kToolCalls);
  EXPECT_EQ(w.sam().sessions().state_name(w.sam().sessions().find("t", "a"), w.now()), "waiting_tool");
  // When the copies take their time: nothing leaves the device before its colder copy is complete, nothing is reported.
  EXPECT_TRUE(w.sam().take_receipts().empty());
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 6);
  w.check();
  // Then, when they are complete, all of it leaves.
  w.hold_stores = false;
  w.answer_stores();
  expect_moved(only(w.sam().take_receipts()), 6, "device", "host");
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 0);
  EXPECT_EQ(w.sam().sequences().cells_used(), 0);

  // When others fill the device during the call, and the tool returns.
  w.pause("a", 20);
  for (int32_t i = 0; i < 3; ++i) w.turn({.session = "other" + std::to_string(i), .prompt = text(20 + i, 60)});
  EXPECT_EQ(w.sam().counters().evicted_device_blocks, 0) << "the offload made the room that they took";
  w.advance(19);
  EXPECT_EQ(w.hint("a", Verb::kPrefetch).status, Outcome::kDeferred);
  expect_moved(only(w.run_until_quiet()), 6, "host", "device");
  // Then it is back before the request, at the cost of one idle session, which lost no block: it went to the host tier.
  int64_t here = 0;
  for (int32_t i = 0; i < 3; ++i) {
    const std::string other = "other" + std::to_string(i);
    here += w.blocks_in(other, Tier::kDevice);
    EXPECT_EQ(w.blocks_in(other, Tier::kHost), 7) << other;
  }
  EXPECT_EQ(here, 2 * 7);
  expect_warm(w.turn({.session = "a", .prompt = text(1, 40) + reply(8) + text(2, 8)}), 8);
  EXPECT_EQ(w.sam().counters().loaded_blocks, 0);
  w.check();
}

TEST_P(Swarm, ToolARequestThatOvertakesItsPrefetchTakesWhatIsThereAndLoadsTheRest) {
  // Given an offloaded session whose prefetch has brought four of six blocks.
  World w = world(2);
  w.turn({.session = "a", .prompt = text(1, 48), .finish = Finish::kToolCalls});
  w.hint("a", Verb::kOffload);
  w.hint("a", Verb::kPrefetch);
  ASSERT_TRUE(w.sam().next_prefetch(4, w.now()));
  w.run_decisions();
  w.sam().prefetch_loaded(4, LoadFault::kNone, w.now());
  EXPECT_EQ(w.hint("a", Verb::kPrefetch).reason, "a prefetch of this session is under way");
  // When its request is there already.
  const RequestId next = w.arrive({.session = "a", .prompt = text(1, 48) + text(2, 8)});
  const hint::Receipt cut_off = only(w.sam().take_receipts());
  ASSERT_TRUE(w.admit(next));
  // Then nothing is copied twice, nothing is computed again, and the receipt tells what came.
  expect_answer(cut_off, Outcome::kClipped, 4, "the turn began");
  expect_reuse(w.sam().reuse(next), 32, 16, 8, Miss::kNone);
  EXPECT_EQ(w.sam().counters().prefetched_blocks, 4);
  EXPECT_EQ(w.sam().counters().loaded_blocks, 2);
  w.run(next, 0);
  w.finish(next);
  EXPECT_FALSE(w.sam().prefetch_pending());
  w.check();
}

// --- 4. Compaction -------------------------------------------------------------------------------------------------------------------

TEST_P(Swarm, CompactionOnlyTheRemovedPartGoesDownAndGoesFirst) {
  // Given a long session and another one, on a device and a host tier that are soon full. Unified: 18 blocks, so that there is pressure.
  SamConfig c = config(lanes(), 4, lanes() ? 4 * kSeqTokens : 18 * kBlock, 8);
  c.device.seq_tokens_max = kSeqTokens;
  World w(c);
  const auto head = text(1, 24);          // three blocks that stay
  const auto before = head + text(2, 32);  // four that the summary will replace
  const auto after = head + text(3, 16);
  w.turn({.session = "b", .prompt = text(4, 48)});
  w.advance(60);  // by age alone b would have to go first
  w.turn({.session = "a", .prompt = before});
  w.advance(5);
  // When a compressor writes the summary and goes, and the session continues on the short prompt.
  w.turn({.session = "a:compressor", .parent = "a", .prompt = text(5, 16)});
  expect_moved(w.hint("a:compressor", Verb::kEvict), 2, "device", "");
  // Then it goes on in place, in the same branch, and claims no more what it gave up.
  expect_reuse(w.turn({.session = "a", .prompt = after}), 24, 0, 16, Miss::kFirstDifference);
  EXPECT_EQ(w.sam().sessions().at(w.sam().sessions().find("t", "a")).branches.size(), 1U);
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 5);
  w.check();

  // When others need room on the device.
  w.turn({.session = "c", .prompt = text(6, 56)});
  // Then the removed part has gone down, all of it and nothing else.
  EXPECT_EQ(copies(w, before, Tier::kDevice, 3), 0);
  EXPECT_EQ(copies(w, before, Tier::kHost, 3), 4);
  EXPECT_EQ(distinct(w, Tier::kHost), 4U);
  EXPECT_EQ(w.sam().counters().evicted_device_blocks, lanes() ? 0 : 4) << "a lane gives it up when the turn goes on";
  EXPECT_EQ(w.blocks_in("a", Tier::kDevice), 5);
  EXPECT_EQ(w.blocks_in("b", Tier::kDevice), 6);
  w.check();

  // When the host tier is short too: b's six blocks want to go where only four places are free.
  expect_moved(w.hint("b", Verb::kOffload), 6, "device", "host");
  // Then the removed part makes the room, deepest first.
  EXPECT_EQ(w.sam().counters().evicted_host_blocks, 2);
  EXPECT_EQ(copies(w, before, Tier::kHost, 3), 2);
  EXPECT_EQ(copies(w, before, Tier::kHost, 5), 0);
  EXPECT_EQ(w.blocks_in("b", Tier::kHost), 6);
  // And nobody else lost anything: the next turns find all that they left.
  expect_warm(w.turn({.session = "a", .prompt = after + text(7, 8)}), 8);
  expect_reuse(w.turn({.session = "b", .prompt = text(4, 48) + text(8, 8)}), 0, 48, 8, Miss::kNone);
  w.check();
}

// --- 5. End --------------------------------------------------------------------------------------------------------------------------

TEST_P(Swarm, EndTheWholeTreeGoesAtOnceAndWhatOthersShareStaysForThem) {
  // Given a team of three, a peer over the same trunk, another tenant's team of the same name, all with host copies.
  World w = world(5);
  w.turn({.session = "leader", .prompt = member(2)});
  w.turn({.session = "coder", .parent = "leader", .prompt = member(3)});
  w.turn({.session = "tester", .parent = "coder", .prompt = member(4)});
  w.turn({.session = "peer", .prompt = member(5)});
  w.turn({.session = "leader", .prompt = member(2), .tenant = "else"});
  w.run_until_quiet();
  EXPECT_EQ(distinct(w, Tier::kDevice), 4U + 4 * 2U + 6U);
  EXPECT_EQ(distinct(w, Tier::kHost), 4U + 4 * 2U + 6U);
  // When the leader ends.
  const hint::Receipt end = w.hint("leader", Verb::kEnd);
  // Then the own parts of all three are freed in both tiers at once; the trunk, asked for by each of them, is the peer's.
  expect_moved(end, 3 * 2 * 2, "device,host", "");
  EXPECT_EQ(end.shared_kept, 3 * 4);
  for (const char* name : {"leader", "coder", "tester"}) {
    EXPECT_EQ(w.sam().sessions().state_name(w.sam().sessions().find("t", name), w.now()), "ended") << name;
  }
  EXPECT_EQ(w.sam().blocks().size(), 6U + 6U);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    EXPECT_EQ(w.blocks_in("peer", tier), 6);
    EXPECT_EQ(w.blocks_in("leader", tier, "else"), 6);
  }
  EXPECT_EQ(w.sam().counters().evicted_device_blocks + w.sam().counters().evicted_host_blocks, 0);
  w.check();

  // When the peer leaves the device, the trunk is in cold storage, and a new life of the same team starts from there.
  EXPECT_EQ(w.hint("peer", Verb::kOffload).status, Outcome::kApplied);
  EXPECT_EQ(copies(w, trunk(), Tier::kHost), 4);
  const Reuse again = w.turn({.session = "leader", .prompt = member(2)});
  EXPECT_EQ(again.device + again.host, 32) << "nothing of its first life but the trunk";
  EXPECT_EQ(w.hint("leader", Verb::kRetain).generation, 2U);
  // When nobody wants the trunk any more, it goes in every tier.
  w.hint("leader", Verb::kEnd);
  w.hint("peer", Verb::kEnd);
  EXPECT_EQ(w.sam().blocks().size(), 6U) << "the other tenant's";
  w.check();
}

TEST_P(Swarm, EndARunningChildFinishesOnItsOwnBlocks) {
  // Given a tree of which one child is at work on the leader's prefix.
  World w = world(4);
  w.turn({.session = "leader", .prompt = member(2)});
  w.turn({.session = "done", .parent = "leader", .prompt = member(3)});
  const RequestId busy = w.arrive({.session = "busy", .parent = "leader", .prompt = member(4), .reply = 8});
  ASSERT_TRUE(w.admit(busy));
  w.run(busy, 1);
  // When the leader ends.
  const hint::Receipt end = w.hint("leader", Verb::kEnd);
  // Then the rest of the tree goes, and the child's context, trunk included, stays to the end of its turn and after.
  EXPECT_EQ(end.status, Outcome::kClipped);
  EXPECT_EQ(end.reason, "a child of this session is running");
  EXPECT_EQ(distinct(w, Tier::kDevice), 6U);
  EXPECT_EQ(w.sam().blocks().size(), 6U);
  EXPECT_EQ(w.length(busy), 49);
  w.check();
  for (int32_t i = 1; i < 8; ++i) ASSERT_TRUE(w.decode(busy, 9000 + i));
  w.finish(busy);
  EXPECT_EQ(w.blocks_in("busy", Tier::kDevice), 7);
  // When the end is said again, it takes the child, and nothing is left.
  EXPECT_EQ(w.hint("leader", Verb::kEnd).status, Outcome::kApplied);
  EXPECT_EQ(w.sam().blocks().size(), 0U);
  EXPECT_EQ(w.sam().sequences().cells_used(), 0);
  w.check();
}

// --- 6. Resume -----------------------------------------------------------------------------------------------------------------------

TEST_P(Swarm, ResumeAColdTeamComesBackByPrefetchAndReceiptsTellHowMuch) {
  // Given a leader and a child that others have pushed off the device while nobody said anything.
  World w = world(2);
  w.turn({.session = "leader", .prompt = text(1, 48)});
  w.turn({.session = "child", .parent = "leader", .prompt = text(2, 40)});
  w.advance(600);
  for (int32_t i = 0; i < 2; ++i) w.turn({.session = "other" + std::to_string(i), .prompt = text(20 + i, 60)});
  w.advance(600);
  EXPECT_EQ(w.sam().counters().evicted_device_blocks, 11);
  EXPECT_EQ(w.blocks_in("leader", Tier::kDevice) + w.blocks_in("child", Tier::kDevice), 0);
  // When the product opens it again: a prefetch for each, before their requests.
  for (const auto& [name, blocks] : {std::pair{"leader", 6}, std::pair{"child", 5}}) {
    EXPECT_EQ(w.hint(name, Verb::kPrefetch).status, Outcome::kDeferred);
    expect_moved(only(w.run_until_quiet()), blocks, "host", "device");
    EXPECT_EQ(w.blocks_in(name, Tier::kDevice), blocks);
  }
  // Then both go on where they were, the second prefetch did not undo the first, and the others are cold, not lost.
  expect_warm(w.turn({.session = "leader", .prompt = text(1, 48) + text(3, 8)}), 8);
  expect_warm(w.turn({.session = "child", .prompt = text(2, 40) + text(4, 8)}), 8);
  EXPECT_EQ(w.sam().counters().prefetched_blocks, 11);
  EXPECT_EQ(w.sam().counters().loaded_blocks, 0);
  for (const char* other : {"other0", "other1"}) EXPECT_EQ(w.blocks_in(other, Tier::kHost), 7) << other;
  // Once it is warm, or nobody's, a prefetch moves nothing: also not another tenant's of that name.
  expect_answer(w.hint("leader", Verb::kPrefetch), Outcome::kApplied, 0, "already on the device");
  EXPECT_EQ(w.hint("leader", Verb::kPrefetch, "else").status, Outcome::kMissing);
  w.hint("leader", Verb::kEnd);
  EXPECT_EQ(w.hint("child", Verb::kPrefetch).status, Outcome::kMissing);
  w.check();
}

TEST_P(Swarm, ResumeWhatTheHostTierCouldNotKeepIsToldAndComputedAgain) {
  // Given a session of which the host tier had room for four of six blocks.
  World w = world(1, 4);
  w.turn({.session = "a", .prompt = text(1, 48)});
  w.turn({.session = "other", .prompt = text(2, 40)});
  w.hint("other", Verb::kEvict);
  EXPECT_EQ(w.blocks_in("a", Tier::kHost), 4);
  // When it resumes.
  w.hint("a", Verb::kPrefetch);
  // Then the receipt claims no more than came, and the turn computes the two lost blocks and what is new.
  expect_answer(only(w.run_until_quiet()), Outcome::kClipped, 4, "not in the host tier any more");
  const Reuse reuse = w.turn({.session = "a", .prompt = text(1, 48) + text(3, 8)});
  expect_reuse(reuse, 32, 0, 8, Miss::kEvicted);
  EXPECT_EQ(reuse.miss_token, 32);
  w.check();
}

TEST_P(Swarm, ResumeUnderANewIdIsWarmToo) {
  // Given a workflow that was paused and offloaded; its engine resumes it under a new id and evicts nothing.
  World w = world(2);
  w.turn({.session = "flow", .prompt = text(1, 48)});
  w.hint("flow", Verb::kOffload);
  EXPECT_EQ(w.hint("flow-resumed", Verb::kPrefetch).status, Outcome::kMissing);
  // When the new id sends the old context.
  const Reuse reuse = w.turn({.session = "flow-resumed", .prompt = text(1, 48) + text(2, 8)});
  // Then nothing of it is computed again, and the old id keeps its claim until it ends, which takes nothing from the new one.
  expect_reuse(reuse, 0, 48, 8, Miss::kNone);
  const hint::Receipt end = w.hint("flow", Verb::kEnd);
  expect_answer(end, Outcome::kApplied, 0, "");
  EXPECT_EQ(end.shared_kept, 6);
  expect_warm(w.turn({.session = "flow-resumed", .prompt = text(1, 48) + text(2, 8) + text(3, 6)}), 6);
  w.check();
}

}  // namespace
}  // namespace kvtide::session
