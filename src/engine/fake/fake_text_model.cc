#include "engine/fake/fake_text_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/hash.h"
#include "engine/fake/fake_engine.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;
using nlohmann::json;

struct Special {
  std::string_view text;
  Token token;
};
constexpr std::array<Special, 3> kSpecials{{{"<|im_start|>", kFakeTurnStart}, {"<|im_end|>", kFakeTurnEnd}, {"<|endoftext|>", kFakeTextEnd}}};
constexpr std::string_view kCallOpen = "<tool_call>";
constexpr std::string_view kCallClose = "</tool_call>";
constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr int kNestingMax = 64;

/// `text` without a tail that may be the start of `mark`: more text could turn it into markup.
std::string_view without_begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return text.substr(0, text.size() - n);
  }
  return text;
}

class FakeReplyParser final : public ReplyParser {
 public:
  explicit FakeReplyParser(uint64_t salt, bool tools) : salt_(salt), tools_(tools) {}

  Result<ParsedReply> parse(std::string_view text, bool partial) const override {
    ParsedReply reply;
    if (text.starts_with(kThinkOpen)) {
      const size_t close = text.find(kThinkClose);
      const std::string_view inside = text.substr(kThinkOpen.size(), close == text.npos ? text.npos : close - kThinkOpen.size());
      reply.reasoning_content = partial && close == text.npos ? without_begun(inside, kThinkClose) : inside;
      text = close == text.npos ? std::string_view() : text.substr(close + kThinkClose.size());
    } else if (partial && kThinkOpen.starts_with(text)) {
      return reply;
    }
    if (!tools_) {
      reply.content = text;
      return reply;
    }
    const size_t first = text.find(kCallOpen);
    reply.content = first != text.npos ? text.substr(0, first) : (partial ? without_begun(text, kCallOpen) : text);
    for (size_t at = first; at != text.npos; at = text.find(kCallOpen, at)) {
      at += kCallOpen.size();
      const size_t close = text.find(kCallClose, at);
      if (close == text.npos) {
        if (partial) break;
        return error(Code::kInvalidArgument, "a tool call does not end");
      }
      if (!add_call(text.substr(at, close - at), reply)) return error(Code::kInvalidArgument, "a tool call is not JSON with name and arguments");
      at = close + kCallClose.size();
    }
    return reply;
  }

 private:
  bool add_call(std::string_view text, ParsedReply& reply) const {
    const json call = json::parse(text, nullptr, false);
    if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
    const json& arguments = call.contains("arguments") ? call["arguments"] : json::object();
    base::Sha256 id;
    id.update(std::to_string(salt_)).update("/").update(std::to_string(reply.tool_calls.size()));
    reply.tool_calls.push_back({.id = "call_" + base::hex(id.digest()).substr(0, 16),
                                .name = call["name"].get<std::string>(),
                                .arguments = arguments.is_string() ? arguments.get<std::string>() : arguments.dump()});
    return true;
  }

  uint64_t salt_;  // of the prompt: equal prompts give equal ids, as everything here is repeatable
  bool tools_;
};

/// The smallest value that a schema of the plain kind allows.
json smallest(const json& schema, int depth) {
  if (depth > kNestingMax || !schema.is_object()) return json::object();
  if (schema.contains("const")) return schema["const"];
  if (schema.contains("enum") && schema["enum"].is_array() && !schema["enum"].empty()) return schema["enum"][0];
  json type = schema.value("type", json("object"));
  if (type.is_array() && !type.empty()) type = json(type[0]);
  if (type == "string") return "";
  if (type == "integer" || type == "number") return 0;
  if (type == "boolean") return false;
  if (type == "array") return json::array();
  if (type == "null") return nullptr;
  json out = json::object();
  const auto properties = schema.find("properties");
  const auto required = schema.find("required");
  if (properties == schema.end() || required == schema.end() || !required->is_array()) return out;
  for (const json& name : *required) {
    if (name.is_string() && properties->contains(name.get<std::string>())) {
      out[name.get<std::string>()] = smallest((*properties)[name.get<std::string>()], depth + 1);
    }
  }
  return out;
}

std::string call_text(const std::string& name, const std::string& arguments) {
  json parsed = json::parse(arguments, nullptr, false);
  if (parsed.is_discarded()) parsed = arguments;
  return std::string(kCallOpen) + json{{"name", name}, {"arguments", parsed}}.dump(-1, ' ', false, json::error_handler_t::replace) +
         std::string(kCallClose);
}

class FakeTextModel final : public TextModel {
 public:
  Result<RenderedChat> render(const ChatInput& input) const override {
    RenderedChat out;
    const bool tools = !input.tools.empty() && input.tool_choice != ToolChoice::kNone;
    if (!input.grammar.empty()) return error(Code::kInvalidArgument, "grammar: the fake model has none");
    if (input.tool_choice == ToolChoice::kRequired && input.tools.empty()) {
      return error(Code::kInvalidArgument, "tool_choice asks for a tool and there are none");
    }
    if (tools) {
      out.text += "<|im_start|>system\n# Tools\n";
      for (const ChatTool& tool : input.tools) out.text += tool.name + ": " + tool.description + " " + tool.parameters + "\n";
      out.text += "<|im_end|>\n";
    }
    for (const ChatMessage& message : input.messages) {
      const std::string role = message.role == "developer" ? "system" : message.role;
      if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
        return error(Code::kInvalidArgument, "the template knows no role '" + message.role + "'");
      }
      out.text += "<|im_start|>" + role + "\n" + message.content;
      for (const ToolCall& call : message.tool_calls) out.text += call_text(call.name, call.arguments);
      out.text += "<|im_end|>\n";
    }
    out.text += "<|im_start|>assistant\n";
    auto dictated = dictate(input, tools);
    if (!dictated) return tl::make_unexpected(dictated.error());
    out.grammar = std::move(*dictated);
    out.parser = std::make_shared<const FakeReplyParser>(base::checksum(std::as_bytes(std::span(out.text))), tools);
    return out;
  }

  std::vector<Token> tokenize(std::string_view text, bool /*begin*/, bool special) const override {
    std::vector<Token> out;
    out.reserve(text.size());
    while (!text.empty()) {
      const auto match = std::find_if(kSpecials.begin(), kSpecials.end(), [&](const Special& s) { return special && text.starts_with(s.text); });
      if (match != kSpecials.end()) {
        out.push_back(match->token);
        text.remove_prefix(match->text.size());
      } else {
        out.push_back(static_cast<uint8_t>(text.front()));
        text.remove_prefix(1);
      }
    }
    return out;
  }

  std::string piece(Token token, bool special) const override {
    if (0 <= token && token < 256) return std::string(1, static_cast<char>(token));
    for (const Special& s : kSpecials) {
      if (special && s.token == token) return std::string(s.text);
    }
    return {};
  }

  bool is_end(Token token) const override { return token == kFakeTurnEnd || token == kFakeTextEnd; }
  const std::vector<std::string>& end_texts() const override { return end_texts_; }
  std::map<std::string, bool> capabilities() const override {
    return {{"supports_tools", true}, {"supports_tool_calls", true}, {"supports_parallel_tool_calls", true}, {"supports_system_role", true}};
  }

 private:
  static Result<std::shared_ptr<const Grammar>> dictate(const ChatInput& input, bool tools) {
    auto grammar = std::make_shared<FakeGrammar>();
    if (!input.json_schema.empty()) {
      const json schema = json::parse(input.json_schema, nullptr, false);
      if (!schema.is_object()) return error(Code::kInvalidArgument, "json_schema is not a JSON object");
      grammar->text = smallest(schema, 0).dump();
    } else if (tools && input.tool_choice == ToolChoice::kRequired) {
      const ChatTool& tool = input.tools.front();
      const json schema = json::parse(tool.parameters.empty() ? "{}" : tool.parameters, nullptr, false);
      if (!schema.is_object()) return error(Code::kInvalidArgument, "tools: the parameters are not a JSON object");
      grammar->text = call_text(tool.name, smallest(schema, 0).dump());
    } else {
      return std::shared_ptr<const Grammar>();
    }
    return std::shared_ptr<const Grammar>(std::move(grammar));
  }

  std::vector<std::string> end_texts_{"<|im_end|>", "<|endoftext|>"};
};

}  // namespace

std::unique_ptr<TextModel> make_fake_text_model() { return std::make_unique<FakeTextModel>(); }

}  // namespace kvtide::engine
