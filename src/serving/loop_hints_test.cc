// Hints on a running loop: receipts say what really happened, and no hint changes a reply.
#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "serving/loop.h"
#include "serving/testing/harness.h"

namespace kvtide::serving {
namespace {

using engine::Layout;
using hint::Outcome;
using hint::Verb;

const std::string kPrompt = std::string(200, 'h') + " what next:";

class HintsTest : public testing::TestWithParam<Layout> {
 protected:
  static Scene scene() {
    Scene out;
    out.engine.layout = GetParam();
    out.engine.seqs = 4;
    return out;
  }
};

TEST_P(HintsTest, OffloadMovesExactlyWhatItsReceiptSays) {
  Harness h(scene());
  const std::string said = h.ask(greedy(kPrompt, "s"))->text();
  const TierSnapshot before = h.tier("device");
  const hint::Receipt receipt = h.manage_one(Verb::kOffload, "s", "off-1");
  const TierSnapshot after = h.tier("device");
  EXPECT_EQ(receipt.status, Outcome::kApplied) << receipt.reason;
  EXPECT_EQ(receipt.verb, "offload");
  EXPECT_EQ(receipt.session_id, "s");
  EXPECT_EQ(receipt.from, "device");
  EXPECT_EQ(receipt.to, "host");
  EXPECT_GT(receipt.bytes, 0);
  EXPECT_EQ(receipt.bytes, before.used_bytes - after.used_bytes);
  EXPECT_EQ(receipt.blocks, before.blocks - after.blocks);
  const SessionSnapshot s = h.session("s");
  EXPECT_EQ(s.blocks_device, 0);
  EXPECT_EQ(s.blocks_host, s.blocks_claimed);
  EXPECT_EQ(h.stats().cells_used, 0);
  // The next turn takes it back from the host tier.
  const std::string next = kPrompt + said + " and then:";
  const auto reply = h.ask(greedy(next, "s"));
  EXPECT_EQ(reply->text(), fresh_reply(next));
  EXPECT_EQ(reply->last().kv.host_tokens, receipt.blocks * 16);
  h.expect_quiet();
}

TEST_P(HintsTest, PrefetchBringsExactlyWhatItsReceiptSays) {
  Harness h(scene());
  const std::string said = h.ask(greedy(kPrompt, "s"))->text();
  h.manage_one(Verb::kOffload, "s");
  const TierSnapshot before = h.tier("device");
  const hint::Receipt receipt = h.manage_one(Verb::kPrefetch, "s", "pre-1");
  const TierSnapshot after = h.tier("device");
  EXPECT_EQ(receipt.status, Outcome::kApplied) << receipt.reason;  // nobody decodes: done at once
  EXPECT_GT(receipt.bytes, 0);
  EXPECT_EQ(receipt.bytes, after.used_bytes - before.used_bytes);
  EXPECT_EQ(receipt.blocks, after.blocks - before.blocks);
  const auto kept = h.find_receipt("pre-1");
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(*kept, receipt);
  const std::string next = kPrompt + said + " and then:";
  const auto reply = h.ask(greedy(next, "s"));
  EXPECT_EQ(reply->text(), fresh_reply(next));
  EXPECT_EQ(reply->last().kv.host_tokens, 0);
  EXPECT_EQ(reply->last().kv.device_tokens, receipt.blocks * 16);
  // Already there: applied, and nothing moved.
  const hint::Receipt again = h.manage_one(Verb::kPrefetch, "s");
  EXPECT_EQ(again.status, Outcome::kApplied);
  EXPECT_EQ(again.bytes, 0);
  h.expect_quiet();
}

TEST_P(HintsTest, EvictFreesExactlyWhatItsReceiptSays) {
  for (const Verb verb : {Verb::kEvict, Verb::kEnd}) {
    Harness h(scene());
    h.ask(greedy(kPrompt, "s"));
    h.wait_written_back("s");
    const TierSnapshot device = h.tier("device");
    const TierSnapshot host = h.tier("host");
    ASSERT_GT(host.blocks, 0);
    const hint::Receipt receipt = h.manage_one(verb, "s");
    EXPECT_EQ(receipt.status, Outcome::kApplied) << receipt.reason;
    const int64_t freed = device.blocks - h.tier("device").blocks + host.blocks - h.tier("host").blocks;
    EXPECT_EQ(receipt.blocks, freed);
    EXPECT_EQ(receipt.bytes, freed * h.loop().engine_info().block_bytes);
    EXPECT_EQ(h.tier("device").blocks, 0);
    EXPECT_EQ(h.tier("host").blocks, 0);
    EXPECT_EQ(h.session("s").state, "ended");
    const auto reply = h.ask(greedy(kPrompt, "s"));
    EXPECT_EQ(reply->text(), fresh_reply(kPrompt));
    EXPECT_EQ(reply->last().kv.device_tokens + reply->last().kv.host_tokens, 0);
    EXPECT_GT(reply->last().kv.generation, receipt.generation);
    h.expect_quiet();
  }
}

TEST_P(HintsTest, EvictKeepsWhatAnotherSessionClaims) {
  Harness h(scene());
  const std::string shared(160, 'c');
  h.ask(greedy(shared + "one asks:", "one"));
  h.ask(greedy(shared + "two asks:", "two"));
  const hint::Receipt receipt = h.manage_one(Verb::kEvict, "one");
  EXPECT_EQ(receipt.status, Outcome::kApplied);
  EXPECT_GE(receipt.shared_kept, 10);
  const auto reply = h.ask(greedy(shared + "two asks:", "two"));
  EXPECT_GE(reply->last().kv.device_tokens + reply->last().kv.host_tokens, 160);
  EXPECT_EQ(reply->text(), fresh_reply(shared + "two asks:"));
  h.expect_quiet();
}

TEST_P(HintsTest, ARepeatedHintIdIsAnsweredDuplicateAndDoesNothing) {
  Harness h(scene());
  h.ask(greedy(kPrompt, "s"));
  const hint::Receipt first = h.manage_one(Verb::kOffload, "s", "same");
  h.manage_one(Verb::kPrefetch, "s");
  const TierSnapshot before = h.tier("device");
  const hint::Receipt second = h.manage_one(Verb::kOffload, "s", "same");
  EXPECT_EQ(second.status, Outcome::kDuplicate);
  EXPECT_EQ(second.bytes, first.bytes);
  EXPECT_EQ(h.tier("device").blocks, before.blocks);
  EXPECT_EQ(h.find_receipt("same")->status, Outcome::kApplied);
  EXPECT_FALSE(h.find_receipt("same", "other").has_value());
  EXPECT_FALSE(h.find_receipt("never").has_value());
}

TEST_P(HintsTest, UnknownSessionsAndOtherTenantsAreMissing) {
  Harness h(scene());
  h.ask(greedy(kPrompt, "s"));
  const int64_t blocks = h.tier("device").blocks;
  for (const Verb verb : {Verb::kOffload, Verb::kPrefetch, Verb::kEvict, Verb::kRetain, Verb::kEnd, Verb::kPause, Verb::kResume}) {
    EXPECT_EQ(h.manage_one(verb, "nobody").status, Outcome::kMissing);
    EXPECT_EQ(h.manage({action(verb, "s")}, "other").at(0).status, Outcome::kMissing);
  }
  EXPECT_EQ(h.tier("device").blocks, blocks);
}

TEST_P(HintsTest, AManagementRequestOfARunningTurnIsDeferredAndCompletedLater) {
  Harness h(scene());
  h.gate().allow(6);
  const auto one = h.submit(greedy(kPrompt, "s", 60));
  ASSERT_TRUE(h.gate().wait_held());
  std::atomic<int> answered{0};
  hint::Receipt now;
  hint::Hints hints;
  hints.dialect = "native";
  hints.actions = {action(Verb::kOffload, "s", "later")};
  ASSERT_TRUE(h.loop().manage("default", hints, [&](std::vector<hint::Receipt> receipts) {
    now = receipts.at(0);
    answered = 1;
  }));
  h.gate().allow(1);  // one step later it is answered, in the middle of the reply
  ASSERT_TRUE(h.gate().wait_held());
  EXPECT_EQ(answered, 1);
  EXPECT_EQ(now.status, Outcome::kDeferred);
  EXPECT_FALSE(one.reply->ended());
  h.gate().open();
  ASSERT_TRUE(one.reply->wait_end());
  EXPECT_EQ(one.reply->text(), fresh_reply(kPrompt, 60));
  const auto done = h.find_receipt("later");
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, Outcome::kApplied) << done->reason;
  EXPECT_GT(done->bytes, 0);
  EXPECT_EQ(h.session("s").blocks_device, 0);
  h.expect_quiet();
}

TEST_P(HintsTest, ActionsOfARequestRunAfterItsTurnAndAreAnsweredWithIt) {
  Harness h(scene());
  GenerateRequest request = greedy(kPrompt, "s");
  request.hints.actions = {action(Verb::kOffload, "", "with-turn")};
  const auto reply = h.ask(request);
  EXPECT_EQ(reply->text(), fresh_reply(kPrompt));
  const auto receipts = reply->last().receipts;
  ASSERT_EQ(receipts.size(), 1U);
  EXPECT_EQ(receipts[0].hint_id, "with-turn");
  EXPECT_EQ(receipts[0].session_id, "s");
  EXPECT_EQ(receipts[0].status, Outcome::kApplied) << receipts[0].reason;
  EXPECT_GT(receipts[0].bytes, 0);
  EXPECT_EQ(h.tier("device").blocks, 0);
  h.expect_quiet();
}

TEST_P(HintsTest, ACancelledTurnStillCompletesWhatWasDeferredForIt) {
  Harness h(scene());
  GenerateRequest request = greedy(kPrompt, "s", 200);
  request.sampling.ignore_eos = true;
  request.hints.actions = {action(Verb::kEnd, "", "end-it")};
  h.gate().allow(8);
  const auto one = h.submit(request);
  ASSERT_TRUE(h.gate().wait_held());
  h.loop().cancel(one.id);
  h.gate().open();
  h.settle();
  const auto done = h.find_receipt("end-it");
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, Outcome::kApplied) << done->reason;
  EXPECT_EQ(h.tier("device").blocks, 0);
  h.expect_quiet();
}

TEST_P(HintsTest, HintsOffAreUnsupportedAndChangeNothing) {
  Scene off = scene();
  off.options.hints = false;
  Harness h(std::move(off));
  h.ask(greedy(kPrompt, "s"));
  const int64_t blocks = h.tier("device").blocks;
  for (const Verb verb : {Verb::kOffload, Verb::kPrefetch, Verb::kEvict, Verb::kEnd}) {
    EXPECT_EQ(h.manage_one(verb, "s").status, Outcome::kUnsupported);
  }
  EXPECT_EQ(h.tier("device").blocks, blocks);
  EXPECT_EQ(h.session("s").session_id, "");  // the name was not looked at
  EXPECT_EQ(h.ask(greedy(kPrompt, "s"))->text(), fresh_reply(kPrompt));
}

TEST_P(HintsTest, OffloadWithoutAHostTierIsUnsupported) {
  Scene bare = scene();
  bare.host_blocks = 0;
  Harness h(std::move(bare));
  h.ask(greedy(kPrompt, "s"));
  EXPECT_EQ(h.manage_one(Verb::kOffload, "s").status, Outcome::kUnsupported);
}

TEST_P(HintsTest, OffloadIntoAHostTierThatIsTooSmallKeepsTheRestOnTheDevice) {
  Scene small = scene();
  small.host_blocks = 4;
  Harness h(std::move(small));
  h.ask(greedy(kPrompt, "s"));
  const TierSnapshot before = h.tier("device");
  const hint::Receipt receipt = h.manage_one(Verb::kOffload, "s");
  EXPECT_NE(receipt.status, Outcome::kApplied);
  EXPECT_EQ(receipt.blocks, before.blocks - h.tier("device").blocks);
  EXPECT_EQ(h.ask(greedy(kPrompt, "s"))->text(), fresh_reply(kPrompt));
  h.expect_quiet();
}

TEST_P(HintsTest, AFailedImportMakesAPrefetchIncompleteAndTheNextReplyRight) {
  Harness h(scene());
  const std::string said = h.ask(greedy(kPrompt, "s"))->text();
  h.manage_one(Verb::kOffload, "s");
  h.on_loop([&] { h.engine().fake().fail_next_import({base::Code::kInternal, "import broke"}); });
  const hint::Receipt receipt = h.manage_one(Verb::kPrefetch, "s");
  EXPECT_EQ(receipt.status, Outcome::kFailed);
  EXPECT_EQ(receipt.bytes, 0);
  const std::string next = kPrompt + said + " and then:";
  EXPECT_EQ(h.ask(greedy(next, "s"))->text(), fresh_reply(next));
  h.expect_quiet();
}

TEST_P(HintsTest, HintsAreCountedByDialectVerbAndStatus) {
  Harness h(scene());
  h.ask(greedy(kPrompt, "s"));
  h.manage_one(Verb::kOffload, "s");
  h.manage_one(Verb::kOffload, "nobody");
  const ServiceStats stats = h.stats();
  auto count = [&](const std::string& key) {
    for (const auto& [name, n] : stats.hints) {
      if (name == key) return n;
    }
    return int64_t{0};
  };
  EXPECT_EQ(count("native/offload/applied"), 1);
  EXPECT_EQ(count("native/offload/missing"), 1);
}

TEST_P(HintsTest, ToolCallsMoveTheSessionToWaitingForATool) {
  Harness h(scene());
  const auto one = h.submit(greedy(kPrompt, "s"));
  ASSERT_TRUE(one.reply->wait_end());
  EXPECT_EQ(h.session("s").state, "waiting_user");
  h.loop().note_tool_calls(one.id, {"shell"});
  EXPECT_EQ(h.session("s").state, "waiting_tool");
  // A newer turn began: what is said of the old one is ignored.
  h.ask(greedy(kPrompt + one.reply->text() + "result", "s"));
  EXPECT_EQ(h.session("s").state, "waiting_user");
  h.loop().note_tool_calls(one.id, {"shell"});
  h.loop().note_tool_calls(RequestId(777), {"shell"});
  EXPECT_EQ(h.session("s").state, "waiting_user");
}

TEST_P(HintsTest, SessionsKnowTheirFamily) {
  Harness h(scene());
  h.ask(greedy(kPrompt + "root", "root"));
  GenerateRequest child = greedy(kPrompt + "child", "child");
  child.hints.identity.parent_id = "root";
  const KvReport first = h.ask(child)->last().kv;
  EXPECT_EQ(h.session("child").parent_id, "root");
  EXPECT_EQ(h.session("root").children, std::vector<std::string>{"child"});
  EXPECT_EQ(h.session("root").turns, 1);
  EXPECT_EQ(h.session("child").reused_tokens_total, first.device_tokens + first.host_tokens);
  const KvReport again = h.ask(greedy(kPrompt + "child", "child"))->last().kv;
  EXPECT_GT(again.device_tokens + again.host_tokens, 0);
  EXPECT_EQ(h.session("child").reused_tokens_total, first.device_tokens + first.host_tokens + again.device_tokens + again.host_tokens);
  h.manage_one(Verb::kEnd, "root");
  EXPECT_EQ(h.session("child").state, "ended");
  EXPECT_EQ(h.tier("device").blocks, 0);
}

// A client that sends every hint about everybody, at any moment. It may cost time; it changes no reply.
TEST_P(HintsTest, AHostileStreamOfHintsChangesNoReply) {
  Scene tight = scene();
  tight.engine.seqs = GetParam() == Layout::kLanes ? 2 : 5;
  tight.engine.device_tokens = 800;
  tight.host_blocks = 64;
  Harness h(std::move(tight));
  std::vector<std::string> prompts;
  for (int i = 0; i < 4; ++i) prompts.push_back(std::string(100, 'k') + std::to_string(i) + ":");
  std::atomic<bool> enough{false};
  std::atomic<int64_t> answered{0};
  std::thread hostile([&] {
    int64_t sent = 0;
    base::Random random(GetParam() == Layout::kLanes ? 1 : 2);
    while (!enough) {
      hint::Hints hints;
      hints.dialect = "native";
      for (int i = 0; i < 3; ++i) {
        hint::Action one = action(static_cast<Verb>(random.next() % 7), "s" + std::to_string(random.next() % 5));
        if (random.next() % 4 == 0) one.hint_id = "id" + std::to_string(random.next() % 50);
        if (random.next() % 8 == 0) one.target = hint::Target::kTokens;
        if (random.next() % 3 == 0) one.identity.parent_id = "s" + std::to_string(random.next() % 5);
        one.ttl_ns = static_cast<int64_t>(random.next());
        one.expected_ns = static_cast<int64_t>(random.next() % 2 == 0 ? random.next() : random.next() % 1000);
        one.tool = "t";
        hints.actions.push_back(one);
      }
      // Full or not: the sender does not care.
      const auto taken = h.loop().manage("default", hints, [&](std::vector<hint::Receipt> receipts) { answered += static_cast<int64_t>(receipts.size()); });
      if (taken) sent += 3;
      while (sent - answered > 60 && !enough) std::this_thread::yield();
    }
  });
  std::vector<std::string> failures;
  for (int turn = 0; turn < 5; ++turn) {
    std::vector<Harness::Submitted> asked;
    for (size_t i = 0; i < prompts.size(); ++i) {
      GenerateRequest request = greedy(prompts[i], "s" + std::to_string(i));
      if (turn % 2 == 1) request.hints.actions = {action(static_cast<Verb>((turn + i) % 7), "")};
      asked.push_back(h.submit(request));
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (!asked[i].reply->wait_end() || asked[i].reply->text() != fresh_reply(prompts[i])) {
        failures.push_back("turn " + std::to_string(turn) + " session " + std::to_string(i));
      }
      prompts[i] += asked[i].reply->text() + "+";
    }
  }
  enough = true;
  hostile.join();
  EXPECT_TRUE(failures.empty()) << failures.front();
  EXPECT_GT(answered, 100);
  EXPECT_EQ(h.stats().requests_failed, 0);
  h.expect_quiet();
}

TEST_P(HintsTest, AFloodOfManagementCallsNeverKeepsARequestOut) {
  Harness h(scene());
  h.gate().allow(0);
  const auto held = h.submit(greedy(kPrompt, "s"));
  ASSERT_TRUE(h.gate().wait_held());
  hint::Hints hints;
  hints.dialect = "native";
  hints.actions = {action(Verb::kRetain, "s")};
  base::Status flooded;
  for (int i = 0; flooded && i < 100'000; ++i) flooded = h.loop().manage("default", hints, [](std::vector<hint::Receipt>) {});
  ASSERT_FALSE(flooded.has_value());
  EXPECT_EQ(flooded.error().code, base::Code::kResourceExhausted);
  const auto asked = h.submit(greedy("a question in the flood", "t"));
  h.gate().open();
  EXPECT_TRUE(asked.reply->wait_end());
  EXPECT_EQ(asked.reply->text(), fresh_reply("a question in the flood"));
  EXPECT_TRUE(held.reply->wait_end());
}

INSTANTIATE_TEST_SUITE_P(Layouts, HintsTest, testing::Values(Layout::kUnified, Layout::kLanes),
                         [](const testing::TestParamInfo<Layout>& info) { return info.param == Layout::kLanes ? "lanes" : "unified"; });

}  // namespace
}  // namespace kvtide::serving
