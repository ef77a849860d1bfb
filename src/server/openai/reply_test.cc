// How a reply becomes deltas and whole answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/reply_diff.h"
#include "server/openai/reply_format.h"
#include "server/testing/plain_text_model.h"

namespace kvtide::server {
namespace {

std::string joined(const std::vector<Json>& deltas) {
  std::string out;
  for (const Json& delta : deltas) out += to_text(delta);
  return out;
}

TEST(ReplyDiff, SaysEachPartOnce) {
  ReplyDiff diff;
  EXPECT_EQ(joined(diff.advance({.content = "", .reasoning_content = "hm", .tool_calls = {}})), R"({"reasoning_content":"hm"})");
  EXPECT_EQ(joined(diff.advance({.content = "a", .reasoning_content = "hm", .tool_calls = {}})), R"({"content":"a"})");
  EXPECT_EQ(joined(diff.advance({.content = "a", .reasoning_content = "hm", .tool_calls = {}})), "");
  EXPECT_EQ(joined(diff.advance({.content = "ab", .reasoning_content = "hm", .tool_calls = {}})), R"({"content":"b"})");
}

TEST(ReplyDiff, AnnouncesACallByNameThenGrowsItsArguments) {
  ReplyDiff diff;
  EXPECT_EQ(joined(diff.advance({.content = "", .reasoning_content = "", .tool_calls = {{"", "", ""}}})), "");
  EXPECT_EQ(joined(diff.advance({.content = "", .reasoning_content = "", .tool_calls = {{"c1", "f", ""}}})),
            R"({"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]})");
  EXPECT_EQ(joined(diff.advance({.content = "", .reasoning_content = "", .tool_calls = {{"c1", "f", "{\"a"}}})),
            R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a"}}]})");
  // A parser that takes something back is not followed.
  EXPECT_EQ(joined(diff.advance({.content = "", .reasoning_content = "", .tool_calls = {{"c1", "f", "{\""}}})), "");
  EXPECT_EQ(joined(diff.advance({.content = "", .reasoning_content = "", .tool_calls = {{"c1", "f", "{\"a\":1}"}}})),
            R"({"tool_calls":[{"index":0,"function":{"arguments":"\":1}"}}]})");
}

TEST(ReplyDiff, MakesDifferentIdsForCallsWithoutOne) {
  EXPECT_NE(make_id("call_"), make_id("call_"));
  ReplyDiff diff;
  const auto deltas = diff.advance({.content = "", .reasoning_content = "", .tool_calls = {{"", "f", ""}}});
  EXPECT_TRUE(deltas[0]["tool_calls"][0]["id"].get<std::string>().starts_with("call_"));
}

class ChatReply : public ::testing::Test {
 protected:
  std::unique_ptr<ReplyFormat> format(bool logprobs = false) {
    engine::ChatInput input;
    input.messages.push_back({.role = "user", .content = "x", .reasoning_content = {}, .tool_calls = {}, .tool_call_id = {}, .name = {}});
    return make_chat_format(text_model_.render(input)->parser, text_model_, 1, logprobs);
  }

  testing::PlainTextModel text_model_;
};

/// The deltas of a stream put together again: content, reasoning, then "name(arguments)" of each call.
std::string reassembled(ReplyFormat& format, const std::string& text) {
  std::string content;
  std::string reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
  Choice choice;
  const auto take = [&](const std::vector<Json>& entries) {
    for (const Json& entry : entries) {
      const Json& delta = entry["delta"];
      content += delta.value("content", "");
      reasoning += delta.value("reasoning_content", "");
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const auto index = call["index"].get<size_t>();
        if (index == calls.size()) calls.emplace_back();
        calls[index].first += call["function"].value("name", "");
        calls[index].second += call["function"].value("arguments", "");
      }
    }
  };
  for (const char c : text) {
    choice.text += c;
    take(format.advance(0, choice));
  }
  choice.done = true;
  take(format.advance(0, choice));
  std::string out = reasoning + "|" + content;
  for (const auto& [name, arguments] : calls) out += "|" + name + "(" + arguments + ")";
  return out;
}

TEST_F(ChatReply, StreamedByteByByteEqualsTheWhole) {
  const std::string text = "<think>hm</think>look <here<call f>{\"a\":1}</call><call g>{}</call>";
  EXPECT_EQ(reassembled(*format(), text), "hm|look <here|f({\"a\":1})|g({})");
  Choice choice;
  choice.text = text;
  choice.done = true;
  const Json whole = format()->whole(0, choice);
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"]["reasoning_content"], "hm");
  EXPECT_EQ(whole["message"]["tool_calls"][1]["function"]["name"], "g");
}

TEST_F(ChatReply, LongRepliesAreParsedSeldomAndStillComplete) {
  const std::string text(40'000, 'x');
  EXPECT_EQ(reassembled(*format(), text), "|" + text);
}

TEST_F(ChatReply, AReplyThatDoesNotParseIsShownAsItIs) {
  Choice choice;
  choice.text = "<call f>{\"a\"";
  choice.done = true;
  EXPECT_EQ(format()->whole(0, choice)["message"]["content"], choice.text);
  EXPECT_EQ(format()->whole(0, choice)["finish_reason"], "stop");
  // Cut off by its length it is a call that did not end.
  choice.finish = serving::FinishReason::kLength;
  EXPECT_EQ(format()->whole(0, choice)["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\"");
  EXPECT_EQ(format()->whole(0, choice)["finish_reason"], "length");
}

TEST_F(ChatReply, LogprobsOfBrokenCharactersArePrintable) {
  Choice choice;
  choice.text = "x";
  choice.done = true;
  choice.samples.push_back({0xC3, -INFINITY, {{'x', -0.5F}}});
  const auto parsed = nlohmann::json::parse(to_text(format(true)->whole(0, choice)));
  EXPECT_EQ(parsed["logprobs"]["content"][0]["bytes"][0], 0xC3);
  EXPECT_EQ(parsed["logprobs"]["content"][0]["logprob"], -9999.0);
  EXPECT_EQ(parsed["logprobs"]["content"][0]["top_logprobs"][0]["token"], "x");
}

TEST(CompletionReply, StreamsTextAndOffsets) {
  testing::PlainTextModel text_model;
  const auto format = make_completion_format(text_model, 1, true);
  Choice choice;
  choice.text = "a";
  choice.samples.push_back({'a', -0.5F, {}});
  EXPECT_EQ(format->advance(0, choice)[0]["text"], "a");
  choice.text = "ab";
  choice.samples.push_back({'b', -0.5F, {}});
  choice.done = true;
  const Json last = format->advance(0, choice)[0];
  EXPECT_EQ(last["text"], "b");
  EXPECT_EQ(last["finish_reason"], "stop");
  EXPECT_EQ(last["logprobs"]["text_offset"][0], 1);
  EXPECT_EQ(last["logprobs"]["tokens"][0], "b");
}

}  // namespace
}  // namespace kvtide::server
