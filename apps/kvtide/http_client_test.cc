#include "apps/kvtide/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/kvtide/testing/scripted_server.h"

namespace kvtide::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
constexpr auto kTimeout = std::chrono::seconds(5);

Endpoint at(const ScriptedServer& server) { return {"127.0.0.1", server.port(), ""}; }
Json chat_body() {
  const Json message{{"role", "user"}, {"content", "hello"}};
  return {{"messages", Json::array({message})}, {"stream", true}};
}

TEST(Endpoints, AreTakenAsPeopleWriteThem) {
  EXPECT_EQ(parse_endpoint("http://10.0.0.1:99/")->port, 99);
  EXPECT_EQ(parse_endpoint("10.0.0.1")->port, 8080);
  EXPECT_EQ(parse_endpoint("localhost:8081")->host, "localhost");
  EXPECT_EQ(parse_endpoint("http://[::1]:5")->host, "::1");
  for (const char* bad : {"https://x", "http://x:0", "http://x:99999", "http://x:12y", "", "http://x/y"}) {
    const auto endpoint = parse_endpoint(bad);
    ASSERT_FALSE(endpoint) << bad;
    EXPECT_THAT(endpoint.error().message, HasSubstr("http://127.0.0.1:8080"));
  }
}

TEST(ServerSentEvents, AreReadWhereverTheBytesAreCut) {
  const std::string stream = ": comment\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:two\ndata: lines\n\ndata: [DONE]\n\n";
  for (size_t step = 1; step <= stream.size(); ++step) {
    SseReader reader;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size(); at += step) {
      reader.feed(std::string_view(stream).substr(at, step), [&](std::string_view data) { events.emplace_back(data); });
    }
    EXPECT_THAT(events, ElementsAre("{\"a\":1}", "two\nlines", "[DONE]")) << "in pieces of " << step;
  }
}

TEST(PathIds, AreEncoded) { EXPECT_EQ(percent_encoded("a/b c~\xC3\xA4"), "a%2Fb%20c~%C3%A4"); }

TEST(HttpClient, KeepsOneConnection) {
  ScriptedServer server;
  HttpClient client(at(server));
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.get("/kv/v1/stats", kTimeout);
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->json()["byte_mismatches"], 0);
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, ComesBackWhenTheServerHungUpBetweenCalls) {
  ScriptedServer server;
  server.hang_up_after = true;
  HttpClient client(at(server));
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.get("/kv/v1/stats", kTimeout);
    ASSERT_TRUE(reply) << reply.error().message;
  }
  EXPECT_EQ(server.connections(), 3);
}

TEST(HttpClient, StreamsEventsInOrderAndShowsItsKey) {
  ScriptedServer server;
  Endpoint endpoint = at(server);
  endpoint.api_key = "K";
  HttpClient client(endpoint);
  std::vector<std::string> events;
  const auto reply =
      client.post_stream("/v1/chat/completions", chat_body(), kTimeout, [&](std::string_view data) { events.emplace_back(data); });
  ASSERT_TRUE(reply) << reply.error().message;
  ASSERT_EQ(events.size(), 4u);
  EXPECT_THAT(events[1], HasSubstr("\"hi\""));
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_THAT(server.last_head(), HasSubstr("Authorization: Bearer K"));
}

TEST(HttpClient, AnErrorInsteadOfAStreamIsAReplyWithItsMessage) {
  ScriptedServer server;
  server.fail_every = 1;
  HttpClient client(at(server));
  int events = 0;
  const auto reply = client.post_stream("/v1/chat/completions", chat_body(), kTimeout, [&](std::string_view) { ++events; });
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->problem(), "HTTP 429: the queue is full");
  EXPECT_EQ(events, 0);
}

TEST(HttpClient, NobodyThereIsUnavailable) {
  uint16_t port = 0;
  {
    const ScriptedServer server;
    port = server.port();
  }
  HttpClient client({"127.0.0.1", port, ""});
  const auto reply = client.get("/", kTimeout);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, base::Code::kUnavailable);
}

}  // namespace
}  // namespace kvtide::app
