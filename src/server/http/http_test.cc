// Routes, errors and keys: the parts of HTTP that need no socket.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "server/http/auth.h"
#include "server/http/error_map.h"
#include "server/http/route.h"

namespace kvtide::server {
namespace {

using base::Code;

TEST(Route, FindsEndpointsWithAndWithoutV1) {
  EXPECT_EQ(route(Method::kPost, "/v1/chat/completions").match->endpoint, Endpoint::kChat);
  EXPECT_EQ(route(Method::kPost, "/chat/completions?x=1").match->endpoint, Endpoint::kChat);
  EXPECT_EQ(route(Method::kGet, "/v1/models/").match->endpoint, Endpoint::kModels);
  EXPECT_EQ(route(Method::kHead, "/health").match->endpoint, Endpoint::kHealth);
}

TEST(Route, TellsUnknownPathsFromWrongMethods) {
  const Routing nowhere = route(Method::kGet, "/v2/nothing");
  EXPECT_FALSE(nowhere.match);
  EXPECT_EQ(nowhere.allow, "");
  const Routing wrong = route(Method::kPut, "/kv/v1/sessions/a");
  EXPECT_FALSE(wrong.match);
  EXPECT_EQ(wrong.allow, "GET, HEAD, DELETE, OPTIONS");
}

TEST(Route, DecodesIdsAfterSplittingThePath) {
  const Routing found = route(Method::kDelete, "/kv/v1/sessions/a%2Fb%20c+d?tenant=x%26y&limit=3");
  ASSERT_TRUE(found.match);
  EXPECT_EQ(found.match->endpoint, Endpoint::kSessionDelete);
  EXPECT_EQ(found.match->id, "a/b c+d");
  EXPECT_EQ(found.match->query.at("tenant"), "x&y");
  EXPECT_EQ(found.match->query.at("limit"), "3");
  EXPECT_FALSE(route(Method::kGet, "/kv/v1/sessions/a/b").match);
  EXPECT_FALSE(route(Method::kGet, "/kv/v1/sessions/%zz").match);
  EXPECT_FALSE(route(Method::kGet, "/kv/v1/sessions/%2").match);
}

TEST(ErrorMap, EveryCodeHasAStatusAndOverloadSaysWhenToRetry) {
  const std::map<Code, int> expected{{Code::kInvalidArgument, 400}, {Code::kNotFound, 404},    {Code::kResourceExhausted, 429},
                                     {Code::kUnavailable, 503},     {Code::kUnsupported, 400}, {Code::kCorrupt, 500},
                                     {Code::kCancelled, 499},       {Code::kDeadlineExceeded, 504}, {Code::kInternal, 500}};
  for (const auto& [code, status] : expected) {
    const Response response = error_response({code, "what"});
    EXPECT_EQ(response.status, status) << base::code_name(code);
    const bool retry = !response.headers.empty() && response.headers[0].first == "Retry-After";
    EXPECT_EQ(retry, code == Code::kResourceExhausted || code == Code::kUnavailable) << base::code_name(code);
  }
}

TEST(ErrorMap, NamesTheFieldAsParam) {
  const auto with_field = nlohmann::json::parse(error_response({Code::kInvalidArgument, "messages[2].content: is required"}).body);
  EXPECT_EQ(with_field["error"]["param"], "messages[2].content");
  EXPECT_EQ(with_field["error"]["type"], "invalid_request_error");
  const auto without = nlohmann::json::parse(error_response({Code::kInvalidArgument, "the body is not JSON: trouble"}).body);
  EXPECT_TRUE(without["error"]["param"].is_null());
}

Headers bearer(const std::string& key) { return {{"authorization", "Bearer " + key}}; }

TEST(Auth, WithoutKeysEverybodyIsTheDefaultTenant) {
  const Auth auth({}, "");
  EXPECT_EQ(auth.identify({}, Access::kTenant)->tenant, "default");
  EXPECT_TRUE(auth.identify({}, Access::kAdmin)->admin);
}

TEST(Auth, KeysNameTenantsAndOpenNoAdminDoors) {
  const Auth auth({{"red", {"r1", "r2"}}, {"blue", {"b1"}}}, "root");
  EXPECT_EQ(auth.identify(bearer("r2"), Access::kTenant)->tenant, "red");
  EXPECT_EQ(auth.identify({{"x-api-key", "b1"}}, Access::kTenant)->tenant, "blue");
  EXPECT_FALSE(auth.identify(bearer("b1"), Access::kAdmin));
  EXPECT_TRUE(auth.identify(bearer("root"), Access::kAdmin)->admin);
  EXPECT_FALSE(auth.identify(bearer("root"), Access::kTenant));
  EXPECT_FALSE(auth.identify({}, Access::kTenant));
  EXPECT_FALSE(auth.identify(bearer(""), Access::kTenant));
  EXPECT_FALSE(auth.identify({{"authorization", "Basic r1"}}, Access::kTenant));
  EXPECT_EQ(auth.identify(bearer("b1"), Access::kTenantOrAdmin)->tenant, "blue");
  EXPECT_TRUE(auth.identify({}, Access::kOpen));
}

TEST(Auth, AdminApiIsClosedWhenOnlyApiKeysExist) {
  const Auth auth({{"red", {"r1"}}}, "");
  EXPECT_FALSE(auth.identify(bearer("r1"), Access::kAdmin));
  EXPECT_FALSE(auth.identify(bearer(""), Access::kAdmin));
}

}  // namespace
}  // namespace kvtide::server
