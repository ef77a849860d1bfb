#include "server/openai/reply_format.h"

#include <utility>

namespace kvtide::server {
namespace {

using serving::FinishReason;

// Parsing a partial reply reads all of it. Long replies are therefore parsed only when they have grown by a small share, which keeps the
// whole cost near O(n) and the text at most that share behind.
constexpr size_t kParseAlwaysBytes = 8192;
constexpr size_t kParseGrowthShare = 1024;

class ChatFormat final : public ReplyFormat {
 public:
  ChatFormat(std::shared_ptr<const engine::ReplyParser> parser, const engine::TextModel& text_model, size_t choices, bool logprobs)
      : parser_(std::move(parser)), text_model_(text_model), logprobs_(logprobs), states_(choices) {}

  std::string_view whole_object() const override { return "chat.completion"; }
  std::string_view chunk_object() const override { return "chat.completion.chunk"; }

  std::vector<Json> opening(size_t index) override {
    return {entry(index, {{"role", "assistant"}, {"content", ""}}, Json())};
  }

  std::vector<Json> advance(size_t index, const Choice& choice) override {
    State& state = states_[index];
    std::vector<Json> deltas;
    bool has_calls = false;
    const size_t grown = choice.text.size() - state.parsed_bytes;
    const bool due = choice.text.size() <= kParseAlwaysBytes || grown * kParseGrowthShare >= choice.text.size();
    if (choice.done || (grown > 0 && due)) {
      state.parsed_bytes = choice.text.size();
      const auto reply = parse(choice);
      if (reply) deltas = state.diff.advance(*reply);
      if (reply && choice.done) note_calls(state, *reply);
      else if (choice.done) deltas = state.diff.finish_raw(choice.text);
      has_calls = state.diff.calls_announced() > 0;
    }
    std::vector<Json> entries;
    for (Json& delta : deltas) entries.push_back(entry(index, std::move(delta), take_logprobs(state, choice)));
    if (choice.done) {
      Json last = entry(index, Json::object(), take_logprobs(state, choice));
      last["finish_reason"] = finish(choice, has_calls);
      entries.push_back(std::move(last));
    }
    return entries;
  }

  Json whole(size_t index, const Choice& choice) override {
    auto reply = parse(choice);
    if (!reply) reply = engine::ParsedReply{.content = choice.text, .reasoning_content = {}, .tool_calls = {}};
    note_calls(states_[index], *reply);
    Json out;
    out["index"] = index;
    out["message"] = message_json(*reply);
    if (logprobs_) out["logprobs"] = chat_logprobs_json(choice.samples, text_model_);
    out["finish_reason"] = finish(choice, !reply->tool_calls.empty());
    return out;
  }

  std::vector<std::string> called_tools(size_t index) const override { return states_[index].calls; }

 private:
  struct State {
    ReplyDiff diff;
    size_t parsed_bytes = 0;
    size_t samples_said = 0;
    std::vector<std::string> calls;
  };

  static void note_calls(State& state, const engine::ParsedReply& reply) {
    state.calls.clear();
    for (const engine::ToolCall& call : reply.tool_calls) state.calls.push_back(call.name);
  }

  /// A reply that was cut off is partial for ever.
  base::Result<engine::ParsedReply> parse(const Choice& choice) const {
    const bool complete = choice.done && (choice.finish == FinishReason::kStop || choice.finish == FinishReason::kToolCalls);
    return parser_->parse(choice.text, !complete);
  }

  static std::string_view finish(const Choice& choice, bool has_calls) {
    const bool calls = has_calls && choice.finish == FinishReason::kStop;
    return serving::finish_reason_name(calls ? FinishReason::kToolCalls : choice.finish);
  }

  Json take_logprobs(State& state, const Choice& choice) const {
    if (!logprobs_ || state.samples_said == choice.samples.size()) return {};
    const auto fresh = std::span(choice.samples).subspan(std::exchange(state.samples_said, choice.samples.size()));
    return chat_logprobs_json(fresh, text_model_);
  }

  static Json entry(size_t index, Json delta, Json logprobs) {
    Json out;
    out["index"] = index;
    out["delta"] = std::move(delta);
    if (!logprobs.is_null()) out["logprobs"] = std::move(logprobs);
    out["finish_reason"] = nullptr;
    return out;
  }

  std::shared_ptr<const engine::ReplyParser> parser_;
  const engine::TextModel& text_model_;
  const bool logprobs_;
  std::vector<State> states_;
};

class CompletionFormat final : public ReplyFormat {
 public:
  CompletionFormat(const engine::TextModel& text_model, size_t choices, bool logprobs)
      : text_model_(text_model), logprobs_(logprobs), states_(choices) {}

  std::string_view whole_object() const override { return "text_completion"; }
  std::string_view chunk_object() const override { return "text_completion"; }
  std::vector<Json> opening(size_t) override { return {}; }

  std::vector<Json> advance(size_t index, const Choice& choice) override {
    State& state = states_[index];
    const size_t said = std::exchange(state.said_bytes, choice.text.size());
    if (said == choice.text.size() && !choice.done) return {};
    const auto fresh = std::span(choice.samples).subspan(std::exchange(state.samples_said, choice.samples.size()));
    return {entry(index, choice, choice.text.substr(said), fresh, state)};
  }

  Json whole(size_t index, const Choice& choice) override { return entry(index, choice, choice.text, choice.samples, states_[index]); }
  std::vector<std::string> called_tools(size_t) const override { return {}; }

 private:
  struct State {
    size_t said_bytes = 0;
    size_t samples_said = 0;
    size_t offset_bytes = 0;  // of the next sample in the text
  };

  Json entry(size_t index, const Choice& choice, std::string text, std::span<const engine::Sample> samples, State& state) const {
    Json out;
    out["index"] = index;
    out["text"] = std::move(text);
    out["logprobs"] = logprobs_ ? legacy_logprobs_json(samples, text_model_, state.offset_bytes) : Json();
    if (logprobs_) {
      for (const engine::Sample& sample : samples) state.offset_bytes += text_model_.piece(sample.token, true).size();
    }
    out["finish_reason"] = choice.done ? Json(serving::finish_reason_name(choice.finish)) : Json();
    return out;
  }

  const engine::TextModel& text_model_;
  const bool logprobs_;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_chat_format(std::shared_ptr<const engine::ReplyParser> parser, const engine::TextModel& text_model,
                                              size_t choices, bool logprobs) {
  return std::make_unique<ChatFormat>(std::move(parser), text_model, choices, logprobs);
}

std::unique_ptr<ReplyFormat> make_completion_format(const engine::TextModel& text_model, size_t choices, bool logprobs) {
  return std::make_unique<CompletionFormat>(text_model, choices, logprobs);
}

}  // namespace kvtide::server
