#include "server/testing/plain_text_model.h"

#include <algorithm>

namespace kvtide::server::testing {
namespace {

/// Takes `text` up to `mark` off its front. Without `mark` all of it, less what may be the beginning of one.
std::string take_until(std::string_view& text, std::string_view mark, bool& found) {
  size_t end = text.find(mark);
  found = end != std::string_view::npos;
  if (!found) {
    end = text.size();
    for (size_t length = std::min(mark.size() - 1, text.size()); length > 0; --length) {
      if (text.ends_with(mark.substr(0, length))) {
        end = text.size() - length;
        break;
      }
    }
  }
  std::string taken(text.substr(0, end));
  text.remove_prefix(found ? end + mark.size() : text.size());
  return taken;
}

class PlainParser final : public engine::ReplyParser {
 public:
  base::Result<engine::ParsedReply> parse(std::string_view text, bool partial) const override {
    engine::ParsedReply reply;
    bool found = true;
    constexpr std::string_view kThink = "<think>";
    if (partial && text.size() < kThink.size() && kThink.starts_with(text)) return reply;
    if (text.starts_with(kThink)) {
      text.remove_prefix(kThink.size());
      reply.reasoning_content = take_until(text, "</think>", found);
      if (!found && !partial) return base::error(base::Code::kInvalidArgument, "reasoning without an end");
    }
    reply.content = take_until(text, "<call ", found);
    while (found) {
      engine::ToolCall call;
      const std::string name = take_until(text, ">", found);
      if (found) call.name = name;
      if (found) call.arguments = take_until(text, "</call>", found);
      reply.tool_calls.push_back(std::move(call));
      if (!found && !partial) return base::error(base::Code::kInvalidArgument, "a call without an end");
      if (found) take_until(text, "<call ", found);
    }
    return reply;
  }
};

}  // namespace

base::Result<engine::RenderedChat> PlainTextModel::render(const engine::ChatInput& input) const {
  if (input.messages[0].content == "refuse me") return base::error(base::Code::kInvalidArgument, "the template wants a user message");
  engine::RenderedChat rendered;
  for (const auto& message : input.messages) rendered.text += message.role + ":" + message.content + "\n";
  rendered.parser = std::make_shared<PlainParser>();
  rendered.stops = {"<end>"};
  return rendered;
}

std::vector<engine::Token> PlainTextModel::tokenize(std::string_view text, bool, bool) const {
  std::vector<engine::Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string PlainTextModel::piece(engine::Token token, bool) const { return std::string(1, static_cast<char>(token)); }

}  // namespace kvtide::server::testing
