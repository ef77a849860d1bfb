// Clients that leave, stall, shout or come in crowds, and a server that stops: nothing waits for ever and nothing runs for nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/server.h"
#include "server/testing/http_client.h"
#include "server/testing/scripted_service.h"

namespace kvtide::server {
namespace {

using namespace std::chrono_literals;
using base::RequestId;
using nlohmann::json;
using testing::Answer;
using testing::HttpClient;
using testing::ScriptedService;
using ::testing::HasSubstr;

json chat_body(bool stream = false) { return {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", stream}}; }

class ServerLimits : public ::testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    options.port = 0;
    auto server = Server::start(service_, std::move(options));
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  void hold() {
    ScriptedService::Script script;
    script.hold = true;
    service_.set_script(script);
  }

  ScriptedService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerLimits, LeavingWhileWaitingCancels) {
  hold();
  start();
  HttpClient client(server_->port());
  client.send("POST", "/v1/chat/completions", chat_body().dump());
  ASSERT_EQ(service_.wait_submitted(1).size(), 1U);
  client.close();
  EXPECT_EQ(service_.wait_cancelled(1), 1U);
}

TEST_F(ServerLimits, LeavingInTheMiddleOfAStreamCancelsEveryChoice) {
  hold();
  start();
  HttpClient client(server_->port());
  json body = chat_body(true);
  body["n"] = 2;
  client.send("POST", "/v1/chat/completions", body.dump());
  ASSERT_EQ(service_.wait_submitted(2).size(), 2U);
  service_.emit_text(RequestId(0), "tok");
  ASSERT_TRUE(client.read_until("tok"));
  client.close();
  EXPECT_EQ(service_.wait_cancelled(2), 2U);
}

TEST_F(ServerLimits, ASlowReaderIsCutOff) {
  hold();
  ServerOptions options;
  options.stream_bytes_max = 64U << 10U;
  start(options);
  HttpClient client(server_->port(), 4096);
  client.send("POST", "/v1/completions", json{{"prompt", "x"}, {"stream", true}}.dump());
  ASSERT_EQ(service_.wait_submitted(1).size(), 1U);
  // Far more than socket buffers take; the client reads nothing.
  for (int i = 0; i < 4096 && service_.cancelled() == 0; ++i) service_.emit_text(RequestId(0), std::string(16384, 'x'));
  EXPECT_EQ(service_.wait_cancelled(1), 1U);
}

TEST_F(ServerLimits, AnErrorInAStreamEndsItWithTheError) {
  hold();
  start();
  HttpClient client(server_->port());
  client.send("POST", "/v1/chat/completions", chat_body(true).dump());
  ASSERT_EQ(service_.wait_submitted(1).size(), 1U);
  service_.emit_text(RequestId(0), "tok");
  ASSERT_TRUE(client.read_until("tok"));
  serving::StreamEvent event;
  event.kind = serving::StreamEvent::Kind::kError;
  event.error = {base::Code::kInternal, "broken"};
  service_.emit(RequestId(0), event);
  const Answer answer = client.read_answer();
  ASSERT_FALSE(answer.events().empty()) << answer.status << answer.body;
  EXPECT_EQ(answer.events().back()["error"]["message"], "broken");
  EXPECT_TRUE(client.read_end());
}

TEST_F(ServerLimits, ARequestHasADeadline) {
  hold();
  ServerOptions options;
  options.request_deadline = 200ms;
  start(options);
  HttpClient client(server_->port());
  EXPECT_EQ(client.post("/v1/chat/completions", chat_body()).status, 504);
  // On a machine so busy that nothing was submitted yet, nothing is left to cancel.
  EXPECT_EQ(service_.cancelled(), service_.wait_submitted(0).size());
  // The connection is as good as before.
  EXPECT_EQ(client.call("GET", "/health").status, 200);
}

TEST_F(ServerLimits, ConnectionsAreKeptAndPipelinedRequestsAnsweredInOrder) {
  start();
  HttpClient client(server_->port());
  EXPECT_EQ(client.post("/v1/chat/completions", chat_body()).status, 200);
  EXPECT_EQ(client.post("/v1/chat/completions", chat_body(true)).events().back(), "[DONE]");
  client.send("POST", "/v1/chat/completions", chat_body().dump());
  client.send("GET", "/health");
  client.send("GET", "/nowhere");
  EXPECT_EQ(client.read_answer().json()["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(client.read_answer().json()["status"], "ok");
  EXPECT_EQ(client.read_answer().status, 404);
}

TEST_F(ServerLimits, HeadAndOptionsHaveNoBody) {
  start();
  HttpClient client(server_->port());
  client.send("HEAD", "/health");
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  client.close();
  HttpClient other(server_->port());
  const Answer options = other.call("OPTIONS", "/v1/chat/completions");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(other.call("GET", "/v1/chat/completions").status, 405);
}

TEST_F(ServerLimits, BodiesAreLimited) {
  ServerOptions options;
  options.body_bytes_max = 1000;
  start(options);
  HttpClient announced(server_->port());
  announced.send_raw("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n");
  const Answer answer = announced.read_answer();
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.json()["error"]["code"], "body_too_large");
  EXPECT_EQ(answer.headers.at("connection"), "close");

  HttpClient chunked(server_->port());
  chunked.send_raw("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') +
                   "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.read_answer().status, 413);

  HttpClient garbage(server_->port());
  garbage.send_raw("this is no HTTP\r\n\r\n");
  EXPECT_EQ(garbage.read_answer().status, 400);

  HttpClient long_head(server_->port());
  long_head.send_raw("GET /health HTTP/1.1\r\nx: " + std::string(40'000, 'y') + "\r\n\r\n");
  EXPECT_EQ(long_head.read_answer().status, 431);
}

TEST_F(ServerLimits, LargeBodiesAreAskedForBeforeTheyAreSent) {
  start();
  HttpClient client(server_->port());
  const std::string body = json{{"prompt", std::string(100'000, 'x')}}.dump();
  const std::string length = std::to_string(body.size());
  client.send_raw("POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: " + length + "\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 100);
  client.send_raw(body);
  EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_EQ(service_.wait_submitted(1)[0].prompt.size(), 100'000U);
}

TEST_F(ServerLimits, AHeadThatTricklesInIsGivenUp) {
  ServerOptions options;
  options.header_timeout = 50ms;
  start(options);
  HttpClient client(server_->port());
  client.send_raw("GET /health HTTP/1.1\r\nHost");
  EXPECT_TRUE(client.read_end());
}

TEST_F(ServerLimits, TooManyConnectionsAreTurnedAway) {
  ServerOptions options;
  options.connections_max = 1;
  start(options);
  HttpClient first(server_->port());
  EXPECT_EQ(first.call("GET", "/health").status, 200);
  HttpClient second(server_->port());
  EXPECT_EQ(second.read_answer().status, 503);
}

TEST_F(ServerLimits, APortInUseIsOneClearError) {
  start();
  ServerOptions options;
  options.port = server_->port();
  const auto second = Server::start(service_, options);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, base::Code::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr("is in use"));
  options.host = "no such host";
  EXPECT_EQ(Server::start(service_, options).error().code, base::Code::kInvalidArgument);
}

TEST_F(ServerLimits, StoppingLetsRunningRequestsEnd) {
  hold();
  start();
  HttpClient idle(server_->port());
  EXPECT_EQ(idle.call("GET", "/health").status, 200);
  HttpClient client(server_->port());
  client.send("POST", "/v1/chat/completions", chat_body(true).dump());
  ASSERT_EQ(service_.wait_submitted(1).size(), 1U);
  std::thread stopping([this] { server_->stop(10s); });
  EXPECT_TRUE(idle.read_end());
  service_.emit_text(RequestId(0), "tok");
  service_.emit_done(RequestId(0));
  EXPECT_EQ(client.read_answer().events().back(), "[DONE]");
  stopping.join();
  EXPECT_EQ(service_.cancelled(), 0U);
  EXPECT_FALSE(HttpClient(server_->port()).connected());
}

TEST_F(ServerLimits, StoppingAtOnceCancelsAndLateEventsAreHarmless) {
  ScriptedService::Script script;
  script.hold = true;
  service_.set_script(script);
  start();
  HttpClient client(server_->port());
  client.send("POST", "/v1/chat/completions", chat_body(true).dump());
  ASSERT_EQ(service_.wait_submitted(1).size(), 1U);
  service_.keep_sinks_after_cancel();
  server_->stop(0ms);
  EXPECT_EQ(service_.cancelled(), 1U);
  server_.reset();
  service_.emit_text(RequestId(0), "late");
  service_.emit_done(RequestId(0));
  EXPECT_TRUE(client.read_end());
}

}  // namespace
}  // namespace kvtide::server
