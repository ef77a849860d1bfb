// Chat messages of clients. Agents send back what they were given, with fields of their own: only what changes the prompt is looked at.
#include <algorithm>
#include <array>

#include "server/openai/request.h"

namespace kvtide::server {
namespace {

constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant", "tool"};

/// Adds one part of a content array to `out`; parts are separated by a line end, as the chat templates do it.
void decode_part(const Json& part, const std::string& path, Fields& fields, std::string& out) {
  if (!part.is_object()) {
    fields.fail(path, "must be an object");
    return;
  }
  Fields inner(part, fields.path_of(path) + ".");
  std::string type;
  inner.text("type", type);
  std::string text;
  if (type == "text" || type == "input_text" || type == "output_text") {
    if (inner.find("text") == nullptr) inner.fail("text", "is required");
    inner.text("text", text);
  } else if (type == "refusal") {
    inner.text("refusal", text);
  } else if (!inner.failed()) {
    inner.fail("type", "only text parts are supported by this model");
  }
  if (!out.empty() && !text.empty()) out += '\n';
  out += text;
  fields.keep(inner.status());
}

void decode_content(Fields& fields, engine::ChatMessage& message) {
  const Json* content = fields.find("content");
  if (content == nullptr || fields.failed()) return;
  if (content->is_string()) {
    message.content = content->get<std::string>();
  } else if (content->is_array()) {
    for (size_t i = 0; i < content->size() && !fields.failed(); ++i) {
      decode_part((*content)[i], "content[" + std::to_string(i) + "]", fields, message.content);
    }
  } else {
    fields.fail("content", "must be a string, an array of parts or null");
  }
}

void decode_tool_call(const Json& call, const std::string& path, Fields& fields, engine::ChatMessage& message) {
  if (!call.is_object()) {
    fields.fail(path, "must be an object");
    return;
  }
  engine::ToolCall decoded;
  Fields inner(call, fields.path_of(path) + ".");
  inner.text("id", decoded.id);
  const Json* function = inner.object("function");
  if (function == nullptr) {
    inner.fail("function", "is required");
  } else {
    Fields named(*function, inner.path_of("function."));
    named.text("name", decoded.name);
    if (decoded.name.empty()) named.fail("name", "is required");
    const Json* arguments = named.find("arguments");
    if (arguments != nullptr && arguments->is_object()) {
      decoded.arguments = to_text(*arguments);  // some clients send them decoded
    } else {
      named.text("arguments", decoded.arguments);
    }
    inner.keep(named.status());
  }
  fields.keep(inner.status());
  message.tool_calls.push_back(std::move(decoded));
}

base::Result<engine::ChatMessage> decode_message(const Json& value, const std::string& path) {
  if (!value.is_object()) return base::error(base::Code::kInvalidArgument, path + ": must be an object");
  engine::ChatMessage message;
  Fields fields(value, path + ".");
  fields.text("role", message.role);
  if (!fields.failed() && std::ranges::find(kRoles, message.role) == kRoles.end()) {
    fields.fail("role", "must be one of system, developer, user, assistant, tool");
  }
  if (message.role != "assistant" && !value.contains("content")) fields.fail("content", "is required");
  decode_content(fields, message);
  fields.text("reasoning", message.reasoning_content)
      .text("reasoning_content", message.reasoning_content)
      .text("tool_call_id", message.tool_call_id)
      .text("name", message.name);
  if (const Json* calls = fields.array("tool_calls"); calls != nullptr && message.role == "assistant") {
    for (size_t i = 0; i < calls->size() && !fields.failed(); ++i) {
      decode_tool_call((*calls)[i], "tool_calls[" + std::to_string(i) + "]", fields, message);
    }
  }
  if (fields.failed()) return tl::make_unexpected(std::move(fields.status().error()));
  return message;
}

}  // namespace

base::Result<std::vector<engine::ChatMessage>> decode_messages(const Json& messages) {
  if (!messages.is_array()) return base::error(base::Code::kInvalidArgument, "messages: must be an array");
  if (messages.empty()) return base::error(base::Code::kInvalidArgument, "messages: must not be empty");
  std::vector<engine::ChatMessage> decoded;
  decoded.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = decode_message(messages[i], "messages[" + std::to_string(i) + "]");
    if (!message) return tl::make_unexpected(std::move(message.error()));
    decoded.push_back(std::move(*message));
  }
  return decoded;
}

}  // namespace kvtide::server
