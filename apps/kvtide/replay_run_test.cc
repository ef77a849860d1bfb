#include "apps/kvtide/replay_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "apps/kvtide/replay_figures.h"
#include "apps/kvtide/testing/scripted_server.h"

namespace kvtide::app {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

/// Two users, three short sessions, pauses of a few milliseconds.
Workload tiny() {
  return synthetic_workload({.users = 2, .sessions = 3, .max_context_tokens = 3000, .gap_scale = 0.001, .gap_cap_s = 0.01, .seed = 2}, {});
}

ArmRun play(const char* arm, const ScriptedServer& server, const Workload& workload) {
  auto run = run_arm(workload, *find_arm(arm), {"127.0.0.1", server.port(), ""}, {});
  EXPECT_TRUE(run) << run.error().message;
  return run ? std::move(*run) : ArmRun();
}

TEST(ReplayArm, PlaysEveryCallOfEverySessionInOrder) {
  ScriptedServer server;
  const Workload workload = tiny();
  const ArmRun run = play("off", server, workload);
  EXPECT_EQ(run.calls.size(), workload.calls());
  std::map<size_t, size_t> next;
  for (const CallResult& call : run.calls) {
    EXPECT_FALSE(call.failed) << call.why;
    EXPECT_EQ(call.turn, next[call.session]++);
    EXPECT_GT(call.ttft_ms, 0);
    EXPECT_GE(call.e2e_ms, call.ttft_ms);
    EXPECT_EQ(call.device_tokens + call.recomputed_tokens, call.prompt_tokens);
    if (call.turn > 0) {
      EXPECT_GT(call.device_tokens, 0) << "the prompt extends the one before, cut reply included";
    }
  }
  EXPECT_EQ(run.tiers.size(), 2u);
  EXPECT_EQ(run.tiers[0].peak_bytes, 900);
  EXPECT_GT(run.peak_live_tokens, 0);
}

TEST(ReplayArm, SilentArmsCarryNoIdentityAtAll) {
  for (const char* arm : {"off", "infer"}) {
    ScriptedServer server;
    play(arm, server, tiny());
    for (const Json& body : server.bodies("/v1/chat/completions")) {
      EXPECT_FALSE(body.contains("agent_hint"));
      EXPECT_FALSE(body.contains("user"));
      EXPECT_TRUE(body.contains("kvtide_forced_reply"));
    }
    EXPECT_TRUE(server.bodies("/kv/v1/hints").empty());
  }
}

TEST(ReplayArm, TheHintedArmTellsPausesAndEnds) {
  ScriptedServer server;
  const Workload workload = tiny();
  const ArmRun run = play("on", server, workload);
  size_t pauses = 0, ends = 0;
  for (const Json& body : server.bodies("/kv/v1/hints")) {
    const Json& hint = body["hints"][0];
    pauses += hint["verb"] == "pause" && hint["tool"] == "bash" && hint["expected_ms"].is_number_integer();
    ends += hint["verb"] == "end";
  }
  EXPECT_EQ(ends, workload.sessions.size());
  EXPECT_EQ(pauses, workload.calls() - workload.sessions.size());
  EXPECT_EQ(run.hint_statuses.at("end/applied"), 3);
  EXPECT_EQ(run.hints_failed, 0);
  std::set<std::string> names;
  for (const Json& body : server.bodies("/v1/chat/completions")) {
    names.insert(body["agent_hint"]["session_id"]);
    EXPECT_EQ(body["agent_hint"]["parent_session_id"], body["agent_hint"]["session_id"]) << "each is a root";
  }
  EXPECT_EQ(names.size(), 3u);
}

TEST(ReplayArm, ALongPauseEndsWithAPrefetchAheadOfTheNextRequest) {
  ScriptedServer server;
  Workload workload = tiny();
  workload.sessions.resize(1);
  workload.queues = {{0}};
  workload.start_s = {0};
  workload.sessions[0].turns.resize(2);
  workload.sessions[0].turns[0].gap_s = 0.05;
  const RunOptions options{.prefetch_lead_s = 0.02, .prefetch_gap_min_s = 0.04, .on_progress = {}};
  ASSERT_TRUE(run_arm(workload, *find_arm("on"), {"127.0.0.1", server.port(), ""}, options));
  const auto hints = server.bodies("/kv/v1/hints");
  ASSERT_EQ(hints.size(), 3u);
  EXPECT_EQ(hints[1]["hints"][0]["verb"], "prefetch");
  EXPECT_EQ(hints[1]["hints"][0]["deadline_ms"], 20);
}

TEST(ReplayArm, WrongHintsHitOtherSessions) {
  ScriptedServer server;
  Workload workload = tiny();
  play("wrong", server, workload);
  const auto hints = server.bodies("/kv/v1/hints");
  ASSERT_FALSE(hints.empty());
  EXPECT_EQ(hints.front()["hints"][0]["verb"], "pause");
}

TEST(ReplayArm, FailuresAreCountedAndNeverEnterALatency) {
  ScriptedServer server;
  server.fail_every = 4;
  const Workload workload = tiny();
  const ArmReport report = summarise(*find_arm("off"), {}, {play("off", server, workload)});
  EXPECT_EQ(report.requests, static_cast<int64_t>(workload.calls()));
  EXPECT_EQ(report.failed, report.requests / 4);
  EXPECT_EQ(report.failures.at("HTTP 429: the queue is full"), report.failed);
  EXPECT_EQ(static_cast<int64_t>(report.ttft_samples_ms.size()), report.requests - report.failed);
}

TEST(ReplayArm, AStreamThatBreaksOffIsAFailure) {
  ScriptedServer server;
  server.no_finish = true;
  const ArmRun run = play("off", server, tiny());
  for (const CallResult& call : run.calls) EXPECT_THAT(call.why, HasSubstr("finish reason"));
}

TEST(ReplayArm, AServerThatIsGoneIsAnErrorNotAHang) {
  uint16_t port = 0;
  {
    const ScriptedServer server;
    port = server.port();
  }
  const auto run = run_arm(tiny(), *find_arm("off"), {"127.0.0.1", port, ""}, {});
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().code, base::Code::kUnavailable);
}

TEST(ReplayArm, NamesThatDoNotExistAreListed) {
  const auto arm = find_arm("best");
  ASSERT_FALSE(arm);
  EXPECT_THAT(arm.error().message, AllOf(HasSubstr("--arms"), HasSubstr("off, infer, on, wrong")));
}

TEST(ReplayChunk, OnlyTextIsAFirstToken) {
  CallResult call;
  EXPECT_FALSE(take_chunk(Json::parse(R"({"choices":[{"delta":{"role":"assistant"},"finish_reason":null}]})"), call));
  EXPECT_FALSE(take_chunk(Json::parse(R"({"choices":[{"delta":{"content":""}}]})"), call));
  EXPECT_TRUE(take_chunk(Json::parse(R"({"choices":[{"delta":{"content":"a"}}]})"), call));
  EXPECT_TRUE(take_chunk(Json::parse(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})"), call));
  take_chunk(Json::parse(R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2},
                            "kv":{"reused":{"device":3,"host":4},"recomputed":2,"compulsory":1,"queue_ms":1.5}})"),
             call);
  EXPECT_EQ(call.device_tokens, 3);
  EXPECT_EQ(call.host_tokens, 4);
  EXPECT_EQ(call.recomputed_tokens, 2);
  EXPECT_EQ(call.compulsory_tokens, 1);
  EXPECT_DOUBLE_EQ(call.queue_ms, 1.5);
  take_chunk(Json::parse(R"({"error":{"message":"broken"}})"), call);
  EXPECT_EQ(call.why, "broken");
  EXPECT_FALSE(take_chunk(Json::parse(R"(["odd"])"), call)) << "oddities are survived";
  EXPECT_FALSE(take_chunk(Json(), call));
}

}  // namespace
}  // namespace kvtide::app
