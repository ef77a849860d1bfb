// What a request log is told: everything that was admitted, with the blocks it asked for and who asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "serving/loop.h"
#include "serving/testing/harness.h"

namespace kvtide::serving {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

// Filled on the loop thread; read after the loop was asked something (Harness::on_loop), which orders the two.
class Heard final : public RequestLog {
 public:
  struct Call {
    RequestId id;
    std::vector<std::string> tools;
  };
  std::vector<RequestRecord> records;
  std::vector<Call> calls;
  std::thread::id thread;

  void finished(RequestRecord record) override {
    thread = std::this_thread::get_id();
    records.push_back(std::move(record));
  }
  void called_tools(RequestId id, const std::vector<std::string>& tools) override { calls.push_back({id, tools}); }
};

Scene logged_by(Heard& heard) {
  Scene scene;
  scene.options.request_log = &heard;
  return scene;
}

std::vector<index::BlockKey> keys_of(Harness& h, const std::string& prompt, const std::string& tenant = "default") {
  const engine::EngineInfo& info = h.loop().engine_info();
  const index::BlockKey root = index::root_key({tenant, "", info.fingerprint, info.block_tokens});
  return index::chain_keys(root, bytes_of(prompt), info.block_tokens);
}

TEST(RequestLog, HearsWhoAskedForWhichBlocksAndHowItEnded) {
  Heard heard;
  Harness h(logged_by(heard));
  const std::string prompt(100, 'p');
  GenerateRequest request = greedy(prompt, "child", 7);
  request.tenant = "team";
  request.hints.identity.parent_id = "lead";
  request.sampling.ignore_eos = true;
  const auto reply = h.ask(request);
  h.settle();
  ASSERT_EQ(heard.records.size(), 1U);
  const RequestRecord& record = heard.records[0];
  EXPECT_EQ(record.tenant, "team");
  EXPECT_EQ(record.session, "child");
  EXPECT_EQ(record.parent, "lead");
  EXPECT_EQ(record.arrived_ns, base::kSecond);  // where the virtual clock begins
  EXPECT_EQ(record.prompt_tokens, 100);
  EXPECT_EQ(record.reply_tokens, 7);
  EXPECT_EQ(record.finish, FinishReason::kLength);
  EXPECT_EQ(record.keys.size(), 6U) << "100 tokens in blocks of 16";
  EXPECT_EQ(record.keys, keys_of(h, prompt, "team"));
  h.on_loop([&] { EXPECT_EQ(heard.thread, std::this_thread::get_id()); });
}

TEST(RequestLog, HearsTheToolsOfAReplyAfterItsEnd) {
  Heard heard;
  Harness h(logged_by(heard));
  GenerateRequest request = greedy("look it up", "s");
  request.forced_reply = bytes_of("call");
  const auto asked = h.submit(std::move(request));
  ASSERT_TRUE(asked.reply->wait_end());
  h.loop().note_tool_calls(asked.id, {"search", "read"});
  h.loop().note_tool_calls(RequestId(12345), {"nobody's"});
  h.settle();
  ASSERT_EQ(heard.records.size(), 1U);
  EXPECT_EQ(heard.records[0].finish, FinishReason::kStop);
  EXPECT_EQ(heard.records[0].id, asked.id);
  ASSERT_EQ(heard.calls.size(), 1U);
  EXPECT_EQ(heard.calls[0].id, asked.id);
  EXPECT_THAT(heard.calls[0].tools, ElementsAre("search", "read"));
}

TEST(RequestLog, HearsTheDerivedSessionWhereNoneIsNamed) {
  Heard heard;
  Harness h(logged_by(heard));
  const std::string prompt(64, 'd');
  const std::string reply = h.ask(greedy(prompt))->text();
  (void)h.ask(greedy(prompt + reply + " and then it goes on"));
  (void)h.ask(greedy(std::string(64, 'x')));
  h.settle();
  ASSERT_EQ(heard.records.size(), 3U);
  EXPECT_THAT(heard.records[0].session, StartsWith("derived-"));
  EXPECT_EQ(heard.records[1].session, heard.records[0].session) << "the prompt goes on where that session stood";
  EXPECT_THAT(heard.records[2].session, StartsWith("derived-"));
  EXPECT_NE(heard.records[2].session, heard.records[0].session);
}

TEST(RequestLog, HearsOfCancelledAndFailedRequestsThatWereAdmittedOnly) {
  Heard heard;
  Scene scene = logged_by(heard);
  scene.options.parallel = 1;
  Harness h(std::move(scene));
  h.gate().allow(0);
  const auto running = h.submit(greedy(std::string(32, 'r'), "running"));
  ASSERT_TRUE(h.gate().wait_held());
  const auto waiting = h.submit(greedy(std::string(32, 'w'), "waiting"));
  h.loop().cancel(waiting.id);
  h.loop().cancel(running.id);
  h.gate().open();
  h.settle();
  ASSERT_EQ(heard.records.size(), 1U);
  EXPECT_EQ(heard.records[0].session, "running");
  EXPECT_EQ(heard.records[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(heard.records[0].keys.size(), 2U);

  h.on_loop([&] { h.engine().fail_steps_with('!'); });
  EXPECT_TRUE(h.ask(greedy("fails!", "failing"))->failed());
  h.settle();
  ASSERT_EQ(heard.records.size(), 2U);
  EXPECT_EQ(heard.records[1].session, "failing");
  EXPECT_EQ(heard.records[1].finish, FinishReason::kError);
  EXPECT_THAT(heard.records[1].keys, IsEmpty());
}

TEST(RequestLog, HearsTheBlocksOfAModelThatCannotReuseThem) {
  Heard heard;
  Scene scene = logged_by(heard);
  scene.engine.reuse = false;
  scene.host_blocks = 0;
  Harness h(std::move(scene));
  const std::string prompt(40, 'n');
  const auto first = h.ask(greedy(prompt, "s"));
  h.settle();
  ASSERT_EQ(heard.records.size(), 1U);
  EXPECT_EQ(heard.records[0].keys, keys_of(h, prompt));
  EXPECT_EQ(h.ask(greedy(prompt, "s"))->last().kv.recomputed_tokens, 40) << "the log changes nothing for the session manager";
}

}  // namespace
}  // namespace kvtide::serving
