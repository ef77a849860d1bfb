#include "engine/fake/fake_text_model.h"

#include <gtest/gtest.h>

#include "engine/fake/fake_engine.h"

namespace kvtide::engine {
namespace {

const ChatTool kTool{.name = "run", .description = "Runs it.", .parameters = R"({"type":"object","properties":{"cmd":{"type":"string"}},"required":["cmd"]})"};

ChatInput ask(std::string text) {
  ChatInput input;
  input.messages.push_back({.role = "user", .content = std::move(text), .reasoning_content = {}, .tool_calls = {}, .tool_call_id = {}, .name = {}});
  return input;
}

TEST(FakeTextModel, TokensAreBytesAndSpecialsComeBack) {
  const auto text = make_fake_text_model();
  const auto tokens = text->tokenize("<|im_start|>a\xc3", true, true);
  ASSERT_EQ(tokens, (std::vector<Token>{kFakeTurnStart, 'a', 0xc3}));
  std::string back;
  for (const Token token : tokens) back += text->piece(token, true);
  EXPECT_EQ(back, "<|im_start|>a\xc3");
  EXPECT_EQ(text->tokenize("<|im_end|>", true, false).size(), 10U);
  EXPECT_EQ(text->piece(kFakeTurnEnd, false), "");
  EXPECT_TRUE(text->is_end(kFakeTurnEnd));
}

TEST(FakeTextModel, TheNextPromptExtendsTheOneBefore) {
  const auto text = make_fake_text_model();
  auto input = ask("hi");
  const std::string first = text->render(input)->text;
  input.messages.push_back({.role = "assistant", .content = "yes", .reasoning_content = {}, .tool_calls = {}, .tool_call_id = {}, .name = {}});
  EXPECT_TRUE(text->render(input)->text.starts_with(first + "yes<|im_end|>"));
}

TEST(FakeTextModel, RequiredToolIsCalledAndParsedBack) {
  const auto text = make_fake_text_model();
  auto input = ask("go");
  input.tools = {kTool};
  input.tool_choice = ToolChoice::kRequired;
  const auto chat = text->render(input);
  ASSERT_TRUE(chat.has_value());
  const auto* grammar = dynamic_cast<const FakeGrammar*>(chat->grammar.get());
  ASSERT_NE(grammar, nullptr);
  const auto reply = chat->parser->parse(grammar->text, false);
  ASSERT_TRUE(reply.has_value());
  ASSERT_EQ(reply->tool_calls.size(), 1U);
  EXPECT_EQ(reply->tool_calls[0].name, "run");
  EXPECT_EQ(reply->tool_calls[0].arguments, R"({"cmd":""})");
  EXPECT_FALSE(reply->tool_calls[0].id.empty());
}

TEST(FakeTextModel, PartialRepliesNeverTakeBackWhatTheySaid) {
  const auto text = make_fake_text_model();
  auto input = ask("go");
  input.tools = {kTool};
  const auto chat = text->render(input);
  const std::string whole = "<think>hm</think>look <t <tool_call>{\"name\":\"run\",\"arguments\":{\"cmd\":\"ls\"}}</tool_call>";
  ParsedReply before;
  for (size_t n = 0; n <= whole.size(); ++n) {
    const auto now = chat->parser->parse(whole.substr(0, n), true);
    ASSERT_TRUE(now.has_value());
    EXPECT_TRUE(now->content.starts_with(before.content)) << n;
    EXPECT_TRUE(now->reasoning_content.starts_with(before.reasoning_content)) << n;
    EXPECT_GE(now->tool_calls.size(), before.tool_calls.size());
    before = *now;
  }
  EXPECT_EQ(before.content, "look <t ");
  EXPECT_EQ(before.reasoning_content, "hm");
  ASSERT_EQ(before.tool_calls.size(), 1U);
  EXPECT_EQ(before.tool_calls[0].arguments, R"({"cmd":"ls"})");
}

TEST(FakeTextModel, BrokenCallIsAnErrorOnlyWhenComplete) {
  const auto text = make_fake_text_model();
  auto input = ask("go");
  input.tools = {kTool};
  const auto chat = text->render(input);
  EXPECT_FALSE(chat->parser->parse("<tool_call>{oops", false).has_value());
  EXPECT_TRUE(chat->parser->parse("<tool_call>{oops", true).has_value());
}

TEST(FakeTextModel, SchemaDictatesASmallestInstance) {
  const auto text = make_fake_text_model();
  auto input = ask("go");
  input.json_schema = R"({"type":"object","properties":{"n":{"type":"integer"},"kind":{"enum":["a","b"]}},"required":["n","kind"]})";
  const auto chat = text->render(input);
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(dynamic_cast<const FakeGrammar*>(chat->grammar.get())->text, R"({"kind":"a","n":0})");
  input.json_schema = "[";
  EXPECT_EQ(text->render(input).error().code, base::Code::kInvalidArgument);
}

TEST(FakeTextModel, UnknownRoleIsRefusedByName) {
  const auto text = make_fake_text_model();
  auto input = ask("go");
  input.messages[0].role = "wizard";
  EXPECT_NE(text->render(input).error().message.find("wizard"), std::string::npos);
}

}  // namespace
}  // namespace kvtide::engine
