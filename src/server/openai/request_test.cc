// What clients send, read into structs; and what is refused, with the field that is wrong.
#include "server/openai/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvtide::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const DecodeOptions kOptions{.vocab_tokens = 100, .allow_forced_replies = true};

base::Result<ChatRequest> chat(const std::string& text) {
  auto body = parse_object(text);
  if (!body) return tl::make_unexpected(body.error());
  return decode_chat(*body, kOptions);
}

base::Result<CompletionRequest> completion(const std::string& text) {
  auto body = parse_object(text);
  if (!body) return tl::make_unexpected(body.error());
  return decode_completion(*body, kOptions);
}

TEST(ChatRequest, ReadsWhatAnAgentSendsBack) {
  const auto request = chat(R"({"model": "any", "messages": [
      {"role": "system", "content": "S", "unknown": 1},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
        {"id": "c1", "type": "function", "index": null, "function": {"name": "read", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": {"name": "list", "arguments": {"z": 1, "a": 2}}}]},
      {"role": "tool", "tool_call_id": "c2", "content": "x"},
      {"role": "tool", "tool_call_id": "c1", "content": "y"}],
    "agent_hint": {"whatever": true}, "user": 7, "reasoning_effort": "high"})");
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = request->input.messages;
  EXPECT_EQ(messages[1].content, "a\nb");
  EXPECT_EQ(messages[2].content, "");
  EXPECT_EQ(messages[2].reasoning_content, "hm");
  EXPECT_EQ(messages[2].tool_calls[1].arguments, R"({"z":1,"a":2})");
  EXPECT_THAT(request->prior_tools, ElementsAre("list", "read"));
  EXPECT_FLOAT_EQ(request->common.sampling.temperature, 0.8F);
  EXPECT_EQ(request->common.max_tokens, -1);
}

TEST(ChatRequest, ReadsSamplingAndLimits) {
  const auto request = chat(R"({"messages": [{"role": "user", "content": "x"}], "temperature": 0, "top_p": 0.5, "top_k": 7.0, "min_p": 0.1,
    "repeat_penalty": 1.1, "frequency_penalty": -1, "presence_penalty": 1, "seed": 42, "n": 3, "max_tokens": 5, "max_completion_tokens": 6,
    "stop": ["a", "", "b"], "logit_bias": {"7": -100}, "logprobs": true, "top_logprobs": 2, "stream": true,
    "stream_options": {"include_usage": true}, "cache_salt": "s", "kvtide_forced_reply": "F"})");
  ASSERT_TRUE(request) << request.error().message;
  const GenerateFields& common = request->common;
  EXPECT_EQ(common.sampling.temperature, 0);
  EXPECT_EQ(common.sampling.top_k, 7);
  EXPECT_EQ(common.sampling.seed, 42U);
  EXPECT_EQ(common.sampling.top_logprobs, 2);
  EXPECT_EQ(common.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(common.choices, 3);
  EXPECT_EQ(common.max_tokens, 6);
  EXPECT_THAT(common.stops, ElementsAre("a", "b"));
  EXPECT_TRUE(common.stream && common.include_usage);
  EXPECT_EQ(common.cache_salt, "s");
  EXPECT_EQ(common.forced_reply, "F");
}

TEST(ChatRequest, KeepsTheOrderOfSchemaKeys) {
  const auto request = chat(R"({"messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}],
    "tool_choice": {"type": "function", "function": {"name": "t"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"z": 1, "b": 2}}},
    "chat_template_kwargs": {"enable_thinking": false, "k": [1]}})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->input.tools[0].parameters, R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(request->input.tool_choice, engine::ToolChoice::kRequired);
  EXPECT_EQ(request->input.json_schema, R"({"z":1,"b":2})");
  EXPECT_EQ(request->input.enable_thinking, false);
  EXPECT_EQ(request->input.template_kwargs.at("k"), "[1]");
}

TEST(ChatRequest, NullMeansAbsent) {
  EXPECT_TRUE(chat(R"({"messages": [{"role": "user", "content": "x", "tool_calls": null, "name": null}], "tools": null, "stop": null,
    "temperature": null, "stream_options": null, "response_format": null, "tool_choice": null, "logit_bias": null, "max_tokens": null})"));
}

struct Refused {
  std::string fields;  // beside good messages, or "messages" itself
  std::string field;   // that the error names
};

class RefusedChat : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedChat, NamesTheField) {
  const bool own = GetParam().fields.find("\"messages\"") != std::string::npos;
  const std::string messages = own ? "" : R"("messages": [{"role": "user", "content": "x"}], )";
  const auto request = chat("{" + messages + GetParam().fields + "}");
  ASSERT_FALSE(request) << GetParam().fields;
  EXPECT_EQ(request.error().code, base::Code::kInvalidArgument);
  EXPECT_THAT(request.error().message, StartsWith(GetParam().field + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    Table, RefusedChat,
    ::testing::Values(
        Refused{R"("messages": [])", "messages"}, Refused{R"("messages": "x")", "messages"}, Refused{R"("messages": [1])", "messages[0]"},
        Refused{R"("messages": [{"role": "user", "content": 5}])", "messages[0].content"},
        Refused{R"("messages": [{"role": "user"}])", "messages[0].content"},
        Refused{R"("messages": [{"role": "robot", "content": ""}])", "messages[0].role"},
        Refused{R"("messages": [{"role": 1, "content": ""}])", "messages[0].role"},
        Refused{R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content[0].type"},
        Refused{R"("messages": [{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text"},
        Refused{R"("messages": [{"role": "assistant", "tool_calls": [{}]}])", "messages[0].tool_calls[0].function"},
        Refused{R"("messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}])",
                "messages[0].tool_calls[0].function.arguments"},
        Refused{R"("temperature": "hot")", "temperature"}, Refused{R"("temperature": -1)", "temperature"},
        Refused{R"("top_p": 2)", "top_p"},
        Refused{R"("top_k": 1.5)", "top_k"}, Refused{R"("n": 0)", "n"}, Refused{R"("n": 17)", "n"}, Refused{R"("n": 1e300)", "n"},
        Refused{R"("max_tokens": 0)", "max_tokens"}, Refused{R"("max_completion_tokens": 99999999999)", "max_completion_tokens"},
        Refused{R"("stream": 1)", "stream"}, Refused{R"("stream_options": [])", "stream_options"},
        Refused{R"("stream_options": {"include_usage": "y"})", "stream_options.include_usage"}, Refused{R"("seed": 1.5)", "seed"},
        Refused{R"("stop": 3)", "stop"},
        Refused{R"("stop": ["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])", "stop"},
        Refused{R"("logit_bias": {"100": 1})", "logit_bias"}, Refused{R"("logit_bias": {"7x": 1})", "logit_bias"},
        Refused{R"("logit_bias": {"7": "a"})", "logit_bias"}, Refused{R"("top_logprobs": 3)", "top_logprobs"},
        Refused{R"("tools": {})", "tools"}, Refused{R"("tools": [{"type": "retrieval"}])", "tools[0].type"},
        Refused{R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name"},
        Refused{R"("tools": [{"function": {"name": "f", "parameters": []}}])", "tools[0].function.parameters"},
        Refused{R"("tool_choice": "required")", "tool_choice"}, Refused{R"("tool_choice": 4)", "tool_choice"},
        Refused{R"("tool_choice": {"function": {"name": "nobody"}})", "tool_choice.function.name"},
        Refused{R"("response_format": {"type": "xml"})", "response_format.type"},
        Refused{R"("response_format": {"type": "json_schema"})", "response_format.json_schema.schema"},
        Refused{R"("cache_salt": 1)", "cache_salt"}, Refused{R"("model": {})", "model"}));

TEST(ChatRequest, ForcedRepliesNeedTheFlag) {
  const auto body = parse_object(R"({"messages": [{"role": "user", "content": "x"}], "kvtide_forced_reply": "F"})");
  const auto request = decode_chat(*body, {.vocab_tokens = 100, .allow_forced_replies = false});
  ASSERT_FALSE(request);
  EXPECT_THAT(request.error().message, StartsWith("kvtide_forced_reply: "));
}

TEST(Body, RefusesWhatIsNotJsonWithoutRepeatingIt) {
  EXPECT_THAT(chat(R"({"messages": secret)").error().message, HasSubstr("trouble at byte"));
  EXPECT_THAT(chat(R"({"messages": secret)").error().message, ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(chat("[]").error().message, HasSubstr("must be a JSON object"));
  EXPECT_THAT(chat("").error().message, HasSubstr("not JSON"));
  EXPECT_THAT(chat("{\"a\": \"\xff\"}").error().message, HasSubstr("not JSON"));
  EXPECT_THAT(chat(R"({"a": )" + std::string(100'000, '[')).error().message, HasSubstr("nests deeper"));
  EXPECT_TRUE(parse_object(R"({"a": ")" + std::string(1000, '[') + R"(\"["})"));
}

TEST(CompletionRequest, TakesOneTextOrOneTokenArray) {
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt": "hi"})")->prompt), "hi");
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt": ["hi"]})")->prompt), "hi");
  EXPECT_THAT(std::get<std::vector<engine::Token>>(completion(R"({"prompt": [1, 2]})")->prompt), ElementsAre(1, 2));
  EXPECT_THAT(std::get<std::vector<engine::Token>>(completion(R"({"prompt": [[3]]})")->prompt), ElementsAre(3));
  for (const char* bad : {R"({})", R"({"prompt": ["a", "b"]})", R"({"prompt": [1, 100]})", R"({"prompt": [1, "a"]})", R"({"prompt": []})",
                          R"({"prompt": {}})"}) {
    EXPECT_THAT(completion(bad).error().message, StartsWith("prompt: ")) << bad;
  }
  EXPECT_THAT(completion(R"({"prompt": "x", "echo": true})").error().message, StartsWith("echo: "));
  EXPECT_THAT(completion(R"({"prompt": "x", "suffix": "y"})").error().message, StartsWith("suffix: "));
  EXPECT_THAT(completion(R"({"prompt": "x", "best_of": 2})").error().message, StartsWith("best_of: "));
  EXPECT_EQ(completion(R"({"prompt": "x", "logprobs": 5})")->common.sampling.top_logprobs, 5);
}

}  // namespace
}  // namespace kvtide::server
