#include "apps/kvtide/trace_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "apps/kvtide/http_client.h"
#include "engine/fake/fake_engine.h"
#include "engine/fake/fake_text_model.h"
#include "server/server.h"
#include "serving/loop.h"
#include "sim/readers/readers.h"
#include "sim/readers/testing/temp_folder.h"

namespace kvtide::app {
namespace {

using serving::FinishReason;
using serving::RequestRecord;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr int32_t kBlock = 4;
constexpr base::TimeNs kBegin = 5 * base::kSecond;

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream out;
  out << std::ifstream(file).rdbuf();
  return out.str();
}

std::vector<index::BlockKey> keys_of(const std::string& prompt) {
  const index::BlockKey root = index::root_key({"default", "", {}, kBlock});
  return index::chain_keys(root, std::vector<int32_t>(prompt.begin(), prompt.end()), kBlock);
}

RequestRecord record(uint64_t id, const std::string& session, const std::string& prompt, FinishReason finish = FinishReason::kStop) {
  RequestRecord out;
  out.id = base::RequestId(id);
  out.arrived_ns = kBegin + static_cast<int64_t>(id) * base::kSecond;
  out.tenant = "default";
  out.session = session;
  out.prompt_tokens = static_cast<int32_t>(prompt.size());
  out.reply_tokens = 3;
  out.finish = finish;
  out.keys = keys_of(prompt);
  return out;
}

class Recording : public testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "recorded.jsonl").string(); }
  TraceRecorder::Say say() {
    return [this](const std::string& line) { said_.push_back(line); };
  }
  std::unique_ptr<TraceRecorder> make(TraceRecorder::Limits limits = {.tool_wait = std::chrono::hours(1)}) {
    auto made = TraceRecorder::create(path(), say(), limits);
    KV_CHECK(made.has_value());
    return std::move(*made);
  }
  std::unique_ptr<TraceRecorder> begun(TraceRecorder::Limits limits = {.tool_wait = std::chrono::hours(1)}) {
    auto made = make(limits);
    KV_CHECK(made->begin(kBlock, kBegin).has_value());
    return made;
  }
  sim::Trace read() {
    auto trace = sim::read_jsonl(path());
    EXPECT_TRUE(trace.has_value()) << (trace ? "" : trace.error().message);
    return trace ? std::move(*trace) : sim::Trace{};
  }

  sim::TempFolder folder_;
  std::vector<std::string> said_;  // read after finish()
};

TEST_F(Recording, TheSimulatorReadsWhatWasAsked) {
  auto recorder = begun();
  recorder->finished(record(1, "lead", "aaaabbbbcc"));
  recorder->called_tools(base::RequestId(1), {"bash", "read"});
  RequestRecord child = record(2, "worker", "aaaabbbbzzzz");
  child.parent = "lead";
  recorder->finished(std::move(child));
  recorder->finished(record(3, "lead", "aaaabbbbccccdddd", FinishReason::kLength));
  recorder->finished(record(4, "lead", "aaaaxxxx", FinishReason::kCancelled));
  recorder->finished(record(5, "lead", "a", FinishReason::kError));
  const TraceRecorder::Totals totals = recorder->finish();
  EXPECT_EQ(totals.written, 5);
  EXPECT_EQ(totals.dropped, 0);
  EXPECT_FALSE(totals.failed);
  EXPECT_THAT(said_, IsEmpty());

  const sim::Trace trace = read();
  EXPECT_TRUE(trace.absolute);
  EXPECT_EQ(trace.block_tokens, kBlock);
  ASSERT_THAT(trace.sessions, SizeIs(2));
  const auto& lead = trace.sessions[0].requests;
  const auto& worker = trace.sessions[1].requests;
  ASSERT_THAT(lead, SizeIs(4));
  ASSERT_THAT(worker, SizeIs(1));
  EXPECT_EQ(trace.sessions[1].parent, 0);
  EXPECT_EQ(lead[0].at_ns, base::kSecond);
  EXPECT_EQ(lead[0].prompt_tokens, 10);
  EXPECT_EQ(lead[0].reply_tokens, 3);
  EXPECT_EQ(lead[0].stop, sim::Stop::kToolUse);
  EXPECT_EQ(trace.tools[lead[0].tool], "bash");
  EXPECT_EQ(worker[0].stop, sim::Stop::kEnd);
  EXPECT_EQ(lead[1].stop, sim::Stop::kEnd);
  EXPECT_EQ(lead[2].stop, sim::Stop::kUnknown);
  EXPECT_EQ(lead[3].stop, sim::Stop::kUnknown);
  // Blocks are shared as the prompts share text.
  const auto up = [&](sim::Node node, int steps) {
    for (; steps > 0; --steps) node = trace.parent[node];
    return node;
  };
  EXPECT_EQ(up(worker[0].leaf, 1), lead[0].leaf) << "aaaabbbb";
  EXPECT_EQ(up(lead[1].leaf, 2), lead[0].leaf);
  EXPECT_NE(up(lead[1].leaf, 1), worker[0].leaf) << "cccc is not zzzz";
  EXPECT_EQ(up(lead[2].leaf, 1), up(lead[0].leaf, 1)) << "aaaa";
  EXPECT_EQ(lead[3].leaf, sim::kNoNode);
  EXPECT_THAT(text_of(path()), HasSubstr("\"keep\":2,")) << "a session's blocks are written once while it grows";
}

TEST_F(Recording, HoldsNoNameNoKeyAndNoMadeUpTool) {
  auto recorder = begun();
  RequestRecord one = record(1, "secret-session", "aaaabbbb");
  one.tenant = "secret-tenant";
  one.parent = "secret-parent";
  const std::string key = base::hex(std::span(one.keys[0]).first(8));
  recorder->finished(one);
  recorder->called_tools(base::RequestId(1), {"the user said: \"my secret\""});
  (void)recorder->finish();
  const std::string text = text_of(path());
  EXPECT_THAT(text, AllOf(Not(HasSubstr("secret")), Not(HasSubstr(key)), HasSubstr("\"parent\":"), HasSubstr("\"tool_use\"")));
  struct stat info {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(Recording, EveryRecordingHidesUnderKeysOfItsOwn) {
  std::vector<std::string> texts;
  for (int i = 0; i < 2; ++i) {
    auto recorder = begun();
    recorder->finished(record(1, "s", "aaaabbbb"));
    (void)recorder->finish();
    texts.push_back(text_of(path()));
    std::filesystem::remove(path());
  }
  EXPECT_NE(texts[0], texts[1]) << "what one says about a prompt says nothing about another";
  EXPECT_EQ(texts[0].size(), texts[1].size());
}

TEST_F(Recording, TheSameNameOfAnotherTenantIsAnotherSession) {
  auto recorder = begun();
  RequestRecord one = record(1, "s", "aaaa");
  one.tenant = "a";
  RequestRecord two = record(2, "s", "aaaa");
  two.tenant = "b";
  RequestRecord none = record(3, "", "aaaa");
  RequestRecord own = record(4, "", "aaaa");
  RequestRecord loop = record(5, "self", "aaaa");
  loop.parent = "self";
  for (const RequestRecord& r : {one, two, none, own, loop}) recorder->finished(r);
  (void)recorder->finish();
  EXPECT_THAT(read().sessions, SizeIs(5)) << "those without a session stand for themselves; nobody is its own parent";
}

TEST_F(Recording, AFullQueueDropsCountsAndSaysSoOnce) {
  auto recorder = make({.records_max = 2, .tool_wait = std::chrono::hours(1)});  // nobody empties the queue yet
  for (uint64_t id = 1; id <= 5; ++id) recorder->finished(record(id, "s", "aaaabbbb"));
  recorder->called_tools(base::RequestId(2), {"bash"});
  ASSERT_TRUE(recorder->begin(kBlock, kBegin));
  const TraceRecorder::Totals totals = recorder->finish();
  EXPECT_EQ(totals.written, 2);
  EXPECT_EQ(totals.dropped, 3);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("--record-trace")));
  const sim::Trace trace = read();
  ASSERT_THAT(trace.sessions, SizeIs(1));
  ASSERT_THAT(trace.sessions[0].requests, SizeIs(2));
  EXPECT_EQ(trace.sessions[0].requests[1].stop, sim::Stop::kToolUse) << "calls find room behind a full line of records";
}

TEST_F(Recording, LongPromptsCountByTheirBlocks) {
  auto recorder = make({.keys_max = 5, .tool_wait = std::chrono::hours(1)});
  for (uint64_t id = 1; id <= 3; ++id) recorder->finished(record(id, "s", "aaaabbbb"));
  ASSERT_TRUE(recorder->begin(kBlock, kBegin));
  const TraceRecorder::Totals totals = recorder->finish();
  EXPECT_EQ(totals.written, 2);
  EXPECT_EQ(totals.dropped, 1);
}

TEST_F(Recording, LinesReachTheFileWhileTheServerRuns) {
  auto recorder = begun({.tool_wait = std::chrono::nanoseconds(0)});
  recorder->finished(record(1, "s", "aaaabbbb"));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (recorder->written() == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_THAT(read().sessions, SizeIs(1));
  (void)recorder->finish();
}

TEST_F(Recording, WhatCannotBeCreatedIsAnErrorThatNamesTheFlag) {
  const auto nowhere = TraceRecorder::create((folder_.path() / "no" / "such" / "folder").string(), say());
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_THAT(nowhere.error().message, AllOf(HasSubstr("--record-trace"), HasSubstr("No such file")));
  (void)folder_.write("recorded.jsonl", "precious");
  const auto existing = TraceRecorder::create(path(), say());
  ASSERT_FALSE(existing.has_value());
  EXPECT_EQ(existing.error().code, base::Code::kInvalidArgument);
  EXPECT_THAT(existing.error().message, AllOf(HasSubstr("--record-trace"), HasSubstr("exists")));
  EXPECT_EQ(text_of(path()), "precious");
}

TEST_F(Recording, AServerThatDoesNotStartLeavesNoFileInTheWayOfTheNext) {
  make().reset();
  EXPECT_FALSE(std::filesystem::exists(path()));
  begun().reset();
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(Recording, AFailedWriteEndsTheRecordingAndKeepsItReadable) {
  auto recorder = begun();
  for (uint64_t id = 1; id <= 20; ++id) recorder->finished(record(id, "s" + std::to_string(id), std::string(40, 'a')));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const TraceRecorder::Totals totals = recorder->finish();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(totals.failed);
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr("--record-trace"), HasSubstr("the server goes on"))));
  EXPECT_GT(totals.written, 0);
  EXPECT_LT(totals.written, 20);
  EXPECT_THAT(read().sessions, SizeIs(static_cast<size_t>(totals.written)));
}

TEST(LastLines, RemembersThoseWrittenLastWithinItsBounds) {
  LastLines lines(2, 5);
  EXPECT_EQ(lines.replace(1, {1, 2}), 0U);
  EXPECT_EQ(lines.replace(1, {1, 2, 3}), 2U);
  EXPECT_EQ(lines.replace(1, {1}), 1U) << "a shorter line keeps at most itself";
  EXPECT_EQ(lines.replace(2, {1, 2}), 0U);
  EXPECT_EQ(lines.replace(1, {1}), 1U);
  EXPECT_EQ(lines.replace(3, {7}), 0U);
  EXPECT_EQ(lines.replace(2, {1}), 0U) << "two were written since: forgotten";
  EXPECT_EQ(lines.sessions(), 2U);
  EXPECT_EQ(lines.replace(3, {7, 1, 2, 3, 4}), 1U);
  EXPECT_EQ(lines.labels(), 5U) << "the other had to go";
  EXPECT_EQ(lines.replace(4, {1, 2, 3, 4, 5, 6}), 0U);
  EXPECT_EQ(lines.labels(), 0U);
}

// From an HTTP request to a trace: everything but main().
TEST_F(Recording, ARunningServerIsRecorded) {
  const base::SteadyClock clock;
  auto recorder = make();
  serving::LoopOptions options;
  options.request_log = recorder.get();
  auto engine = engine::make_fake_engine();
  const int32_t block_tokens = engine->info().block_tokens;
  auto loop = serving::Loop::start(std::move(engine), engine::make_fake_text_model(), nullptr, options, clock);
  ASSERT_TRUE(loop);
  server::ServerOptions http_options;
  http_options.port = 0;
  auto http = server::Server::start(**loop, http_options);
  ASSERT_TRUE(http);
  ASSERT_TRUE(recorder->begin(block_tokens, clock.now()));
  HttpClient client({.port = (*http)->port()});
  const auto ask = [&](Json body) {
    body["model"] = "fake";
    body["max_tokens"] = 200;
    const auto reply = client.post("/v1/chat/completions", body, std::chrono::seconds(30));
    ASSERT_TRUE(reply && reply->ok()) << (reply ? reply->body : reply.error().message);
  };
  const Json question = {{"role", "user"}, {"content", "What is in the file, and what should be done about it?"}};
  const Json tool = {{"type", "function"}, {"function", {{"name", "read_file"}, {"parameters", {{"type", "object"}}}}}};
  ask({{"messages", {question}}, {"tools", {tool}}, {"tool_choice", "required"}});
  ask({{"messages", {question}}});
  ask({{"messages", {question}}});
  (*http)->stop(std::chrono::seconds(10));
  (*loop)->stop(std::chrono::seconds(1));
  EXPECT_EQ(recorder->finish().written, 3);

  const sim::Trace trace = read();
  EXPECT_EQ(trace.block_tokens, block_tokens);
  std::vector<sim::TraceRequest> all;
  for (const sim::TraceSession& session : trace.sessions) all.insert(all.end(), session.requests.begin(), session.requests.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[0].stop, sim::Stop::kToolUse);
  EXPECT_EQ(trace.tools[all[0].tool], "read_file");
  EXPECT_GT(all[0].reply_tokens, 0);
  EXPECT_EQ(all[1].stop, sim::Stop::kEnd);
  EXPECT_NE(all[1].leaf, sim::kNoNode);
  EXPECT_EQ(all[1].leaf, all[2].leaf) << "the same question";
  EXPECT_THAT(text_of(path()), Not(HasSubstr("file, and")));
}

}  // namespace
}  // namespace kvtide::app
