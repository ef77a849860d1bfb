// Real sockets, a scripted service: what clients see of chats, completions, hints and the admin API.
#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "server/testing/http_client.h"
#include "server/testing/scripted_service.h"

namespace kvtide::server {
namespace {

using nlohmann::json;
using testing::Answer;
using testing::HttpClient;
using testing::ScriptedService;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json chat_body(const std::string& text = "hi") { return {{"messages", {{{"role", "user"}, {"content", text}}}}}; }

class ServerTest : public ::testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    options.port = 0;
    auto server = Server::start(service_, std::move(options));
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  Answer post(const std::string& target, const json& body, const std::string& headers = {}) {
    return HttpClient(server_->port()).post(target, body, headers);
  }
  Answer get(const std::string& target, const std::string& headers = {}) {
    return HttpClient(server_->port()).call("GET", target, {}, headers);
  }

  ScriptedService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AnswersAChat) {
  ScriptedService::Script script;
  script.kv.prompt_tokens = 8;
  script.kv.device_tokens = 3;
  script.kv.host_tokens = 2;
  script.kv.miss = serving::MissReason::kEvicted;
  script.kv.session_id = "s";
  service_.set_script(script);
  start();
  json body = chat_body();
  body["model"] = "gpt-something";
  const Answer answer = post("/v1/chat/completions", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json reply = answer.json();
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["model"], "plain-1");
  EXPECT_EQ(reply["choices"][0]["message"], json({{"role", "assistant"}, {"content", "Hello"}}));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 8);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 2);
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
  EXPECT_EQ(reply["kv"]["reused"], json({{"device", 3}, {"host", 2}}));
  EXPECT_EQ(reply["kv"]["miss"]["reason"], "evicted");
  EXPECT_FALSE(reply.contains("kv_hint_result"));
  const auto submitted = service_.wait_submitted(1);
  EXPECT_EQ(submitted[0].prompt_text, "user:hi\n");
  EXPECT_THAT(submitted[0].stops, ElementsAre("<end>"));
  EXPECT_EQ(submitted[0].hints.dialect, "none");
}

TEST_F(ServerTest, StreamsAChatWithUsageBesideAChoice) {
  start();
  json body = chat_body();
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const Answer answer = post("/v1/chat/completions", body);
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream");
  const auto events = answer.events();
  ASSERT_GE(events.size(), 5U);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (const json& event : events) {
    if (event.is_object() && !event["choices"].empty()) text += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "Hello");
  const json& last_choice = events[events.size() - 3];
  EXPECT_EQ(last_choice["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last_choice["usage"]["completion_tokens"], 2);
  EXPECT_TRUE(last_choice.contains("kv"));
  const json& usage = events[events.size() - 2];
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events.back(), "[DONE]");
}

// The next request may arrive at the very moment at which the server stops looking for a client that left.
TEST_F(ServerTest, AClientThatAsksAgainAtOnceIsAnswered) {
  start();
  json body = chat_body();
  body["stream"] = true;
  std::vector<std::jthread> clients;
  std::atomic<int> unanswered{0};
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&] {
      HttpClient client(server_->port());
      for (int i = 0; i < 500 && unanswered == 0; ++i) {
        const Answer answer = client.post("/v1/chat/completions", body);
        if (answer.status != 200 || answer.events().empty() || answer.events().back() != "[DONE]") ++unanswered;
      }
    });
  }
  clients.clear();
  EXPECT_EQ(unanswered, 0);
}

TEST_F(ServerTest, StreamsToolCalls) {
  ScriptedService::Script script;
  script.pieces = {"ok<ca", "ll read>{\"pa", "th\":1}</call>"};
  service_.set_script(script);
  start();
  json body = chat_body();
  body["stream"] = true;
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "read"}}}}};
  std::string content;
  std::string arguments;
  std::string name;
  std::string finish;
  for (const json& event : post("/v1/chat/completions", body).events()) {
    if (!event.is_object()) continue;
    const json& choice = event["choices"][0];
    content += choice["delta"].value("content", "");
    for (const json& call : choice["delta"].value("tool_calls", json::array())) {
      name += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(content, "ok");
  EXPECT_EQ(name, "read");
  EXPECT_EQ(arguments, "{\"path\":1}");
  EXPECT_EQ(finish, "tool_calls");
  ASSERT_EQ(service_.noted().size(), 1U);
  EXPECT_THAT(service_.noted()[0].second, ElementsAre("read"));
}

TEST_F(ServerTest, SubmitsEachChoiceWithItsOwnSeed) {
  start();
  json body = chat_body();
  body["n"] = 2;
  body["seed"] = 10;
  body["agent_hint"] = {{"session_id", "s"}, {"action", "offload"}};
  const json reply = post("/v1/chat/completions", body).json();
  ASSERT_EQ(reply["choices"].size(), 2U) << reply;
  EXPECT_EQ(reply["choices"][1]["index"], 1);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 4);
  const auto submitted = service_.wait_submitted(2);
  EXPECT_EQ(submitted[0].sampling.seed, 10U);
  EXPECT_EQ(submitted[1].sampling.seed, 11U);
  EXPECT_EQ(submitted[0].hints.actions.size(), 1U);
  EXPECT_TRUE(submitted[1].hints.actions.empty());
  EXPECT_EQ(submitted[1].hints.identity.session_id, "s");
}

TEST_F(ServerTest, ReportsErrorsBeforeTheFirstTokenAsStatus) {
  ScriptedService::Script script;
  script.error = base::Error{base::Code::kInvalidArgument, "the prompt is longer than the context"};
  service_.set_script(script);
  start();
  json body = chat_body();
  body["stream"] = true;
  const Answer answer = post("/v1/chat/completions", body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.json()["error"]["message"], HasSubstr("longer than the context"));
  EXPECT_EQ(post("/v1/chat/completions", chat_body("refuse me")).status, 400);
}

TEST_F(ServerTest, AnswersLogprobsAndForcedReplies) {
  ScriptedService::Script script;
  script.logprobs = true;
  service_.set_script(script);
  ServerOptions options;
  options.allow_forced_replies = true;
  start(options);
  json body = chat_body();
  body["logprobs"] = true;
  body["kvtide_forced_reply"] = "ab";
  const json reply = post("/v1/chat/completions", body).json();
  EXPECT_EQ(reply["choices"][0]["logprobs"]["content"][0]["token"], "H");
  EXPECT_THAT(service_.wait_submitted(1)[0].forced_reply, ElementsAre('a', 'b'));
}

TEST_F(ServerTest, AnswersCompletions) {
  start();
  const json reply = post("/v1/completions", {{"prompt", {104, 105}}, {"max_tokens", 3}}).json();
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["choices"][0]["text"], "Hello");
  const auto submitted = service_.wait_submitted(1);
  EXPECT_THAT(submitted[0].prompt, ElementsAre(104, 105));
  EXPECT_EQ(submitted[0].max_tokens, 3);
  const auto events = post("/completions", {{"prompt", "x"}, {"stream", true}}).events();
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerTest, ManagesWithoutMessagesAndWithoutInference) {
  start();
  const json management = {{"manage_request", true}, {"edits", {{{"type", "offload"}, {"target", "session"}}}}};
  json body = {{"model", "m"}, {"messages", json::array()}};
  body["agent_hint"] = {{"session_id", "s"}, {"parent_session_id", "s"}, {"context_management", management}};
  const Answer answer = post("/v1/chat/completions", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json reply = answer.json();
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "");
  EXPECT_EQ(reply["usage"]["total_tokens"], 0);
  EXPECT_EQ(reply["kv_hint_result"]["receipts"][0]["verb"], "offload");
  EXPECT_EQ(reply["kv_hint_result"]["receipts"][0]["bytes"], 300);
  body.erase("messages");
  EXPECT_EQ(post("/v1/chat/completions", body).status, 200);
  body["messages"] = {{{"role", "user"}, {"content", ""}}};
  EXPECT_EQ(post("/v1/chat/completions", body).status, 200);
  EXPECT_EQ(service_.managed().size(), 3U);
  EXPECT_TRUE(service_.wait_submitted(0).empty());
}

TEST_F(ServerTest, MalformedHintsAreReportedBesideTheAnswer) {
  start();
  json body = chat_body();
  body["agent_hint"] = {{"session_id", 5}, {"action", "explode"}};
  const Answer answer = post("/v1/chat/completions", body);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "Hello");
  EXPECT_FALSE(answer.json()["kv_hint_result"]["problems"].empty());
}

TEST_F(ServerTest, OverloadSaysWhenToRetry) {
  service_.refuse(base::Error{base::Code::kResourceExhausted, "the queue is full"});
  start();
  const Answer answer = post("/v1/chat/completions", chat_body());
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  EXPECT_EQ(answer.json()["error"]["type"], "rate_limit_error");
}

TEST_F(ServerTest, KeysNameTenants) {
  ServerOptions options;
  options.api_keys = {{"red", {"r1"}}};
  options.admin_key = "root";
  start(options);
  EXPECT_EQ(post("/v1/chat/completions", chat_body()).status, 401);
  EXPECT_EQ(post("/v1/chat/completions", chat_body(), "Authorization: Bearer r1\r\n").status, 200);
  EXPECT_EQ(service_.wait_submitted(1)[0].tenant, "red");
  EXPECT_EQ(get("/kv/v1/stats", "Authorization: Bearer r1\r\n").status, 401);
  EXPECT_EQ(get("/kv/v1/stats", "Authorization: Bearer root\r\n").status, 200);
  EXPECT_EQ(get("/health").status, 200);
  const json hints = {{"session_id", "s"}, {"verb", "offload"}};
  EXPECT_EQ(post("/kv/v1/hints", hints, "x-api-key: r1\r\n").status, 200);
  EXPECT_EQ(post("/kv/v1/hints?tenant=blue", hints, "x-api-key: root\r\n").status, 200);
  EXPECT_EQ(post("/kv/v1/hints?tenant=blue", hints, "x-api-key: r1\r\n").status, 200);
  const auto managed = service_.managed();
  ASSERT_EQ(managed.size(), 3U);
  EXPECT_EQ(managed[0].first, "red");
  EXPECT_EQ(managed[1].first, "blue");
  EXPECT_EQ(managed[2].first, "red");
}

TEST_F(ServerTest, TellsItsModelAndRefusesOthersOnlyWhenStrict) {
  ServerOptions options;
  options.strict_model = true;
  options.alias = "house";
  start(options);
  EXPECT_EQ(get("/v1/models").json()["data"][0]["id"], "house");
  EXPECT_EQ(get("/v1/models/house").status, 200);
  EXPECT_EQ(get("/v1/models/other").status, 404);
  json body = chat_body();
  body["model"] = "other";
  const Answer refused = post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(refused.json()["error"]["code"], "model_not_found");
  body["model"] = "plain-1";
  EXPECT_EQ(post("/v1/chat/completions", body).json()["model"], "house");
}

TEST_F(ServerTest, ServesTheAdminApi) {
  service_.session_list = {{.tenant = "default", .session_id = "a/b", .parent_id = "p"}, {.tenant = "red", .session_id = "c"}};
  service_.tier_list = {{.name = "host", .used_bytes = 9}};
  service_.stats_now.requests_total = 4;
  const policy::Regret regret{.prompt = 9, .reused = 3, .lost = {0, 0, 0, 3}};
  service_.stats_now.regret.tenants = {{.tenant = "red", .total = regret, .last_hour = regret}};
  start();
  EXPECT_EQ(get("/health").json(), json({{"status", "ok"}}));
  EXPECT_EQ(get("/kv/v1/tiers").json()["tiers"][0]["used_bytes"], 9);
  EXPECT_EQ(get("/kv/v1/stats").json()["requests"]["total"], 4);
  EXPECT_EQ(get("/kv/v1/stats").json()["regret"]["tenants"][0]["last_hour"]["hits"]["optimal"], 6);
  EXPECT_THAT(get("/metrics").body, HasSubstr("kvtide_regret_lost_tokens_total{tenant=\"red\",against=\"optimal\"} 3\n"));
  EXPECT_EQ(get("/kv/v1/capabilities").json()["engine"]["name"], "scripted");
  EXPECT_THAT(get("/metrics").body, HasSubstr("kvtide_requests_total 4\n"));
  EXPECT_EQ(get("/kv/v1/sessions?offset=2&limit=7").json()["total"], 2);
  EXPECT_EQ(service_.last_query().limit, 7U);
  EXPECT_EQ(service_.last_query().offset, 2U);
  EXPECT_EQ(get("/kv/v1/sessions?limit=many").status, 400);
  EXPECT_EQ(get("/kv/v1/sessions/a%2Fb").json()["parent_id"], "p");
  EXPECT_EQ(get("/kv/v1/sessions/nobody").status, 404);
  EXPECT_EQ(get("/kv/v1/hints/known%20of%20default").json()["verb"], "offload");
  EXPECT_EQ(get("/kv/v1/hints/other").status, 404);
  const Answer ended = HttpClient(server_->port()).call("DELETE", "/kv/v1/sessions/a%2Fb?tenant=red");
  EXPECT_EQ(ended.json()["receipts"][0]["session_id"], "a/b");
  EXPECT_EQ(service_.managed()[0].first, "red");
  EXPECT_EQ(HttpClient(server_->port()).call("POST", "/kv/v1/hints", "not json").status, 400);
}

}  // namespace
}  // namespace kvtide::server
