// Bodies with hints, and bodies that are nearly right: decoding answers with a struct or an error, whatever comes.
#include "server/openai/prepare.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvtide::server {
namespace {

const GenerationOptions kOptions{.model_name = "m", .other_name = "m", .strict_model = false, .allow_forced_replies = true};

base::Result<Decoded> decode(const std::string& body, const Headers& headers = {}) {
  engine::EngineInfo info;
  info.vocab_tokens = 1000;
  return decode_request(body, headers, ReplyKind::kChat, kOptions, info);
}

constexpr std::string_view kBody = R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a\u00e4b"}]},
  {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "index": null, "function": {"name": "f", "arguments": "{}"}}]},
  {"role": "tool", "tool_call_id": "c", "content": "x"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "auto",
  "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}, "stop": ["a"], "seed": 1, "temperature": 0.5, "n": 2,
  "logit_bias": {"3": 1}, "logprobs": true, "top_logprobs": 1, "stream": true, "stream_options": {"include_usage": true},
  "max_tokens": 4, "agent_hint": {"session_id": "s", "parent_session_id": "s", "context_management":
  {"manage_request": false, "edits": [{"type": "evict", "target": "messages", "start": 1, "end": 2}]}}})";

TEST(DecodeRequest, ReadsHintsFromBodyAndHeaders) {
  const auto body = decode(std::string(kBody));
  ASSERT_TRUE(body) << body.error().message;
  EXPECT_FALSE(body->manage);
  EXPECT_EQ(body->hints.identity.session_id, "s");
  EXPECT_EQ(body->hints.actions.size(), 1U);
  const auto headers = decode(R"({"messages": [{"role": "user", "content": "x"}]})", {{"x-session-id", "h"}});
  EXPECT_EQ(headers->hints.identity.session_id, "h");
}

TEST(DecodeRequest, AHintOnABodyWithMessagesIsNoManagementRequest) {
  const std::string hint = R"("agent_hint": {"session_id": "s", "action": "offload"}})";
  EXPECT_FALSE(decode(R"({"messages": [{"role": "user", "content": "x"}], )" + hint)->manage);
  EXPECT_TRUE(decode(R"({"messages": [], )" + hint)->manage);
}

TEST(DecodeRequest, MutatedBodiesNeverThrow) {
  base::Random random(7);
  const std::string_view alphabet = "{}[]\",:0123456789eE.-+ntfaus\\\x01\xff";
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string body(kBody);
    const uint64_t edits = 1 + random.below(3);
    for (uint64_t edit = 0; edit < edits; ++edit) {
      const size_t at = random.below(body.size());
      if (random.below(3) == 0) body.erase(at, 1 + random.below(20));
      else body[at] = alphabet[random.below(alphabet.size())];
    }
    accepted += decode(body).has_value() ? 1 : 0;
  }
  EXPECT_GT(accepted, 100);  // the mutations reach behind the JSON parser
}

}  // namespace
}  // namespace kvtide::server
