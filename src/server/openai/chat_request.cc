// The body of /v1/chat/completions.
#include <algorithm>

#include "server/openai/request.h"

namespace kvtide::server {
namespace {

void decode_tool(const Json& tool, const std::string& path, Fields& fields, ChatRequest& out) {
  if (!tool.is_object()) {
    fields.fail(path, "must be an object");
    return;
  }
  Fields inner(tool, fields.path_of(path) + ".");
  std::string type = "function";
  inner.text("type", type);
  if (type != "function") inner.fail("type", "only 'function' tools are supported");
  engine::ChatTool decoded;
  const Json* function = inner.object("function");
  if (function == nullptr) {
    inner.fail("function", "is required");
  } else {
    Fields named(*function, inner.path_of("function."));
    named.text("name", decoded.name).text("description", decoded.description);
    if (decoded.name.empty()) named.fail("name", "is required");
    const Json* parameters = named.object("parameters");
    decoded.parameters = parameters != nullptr && !parameters->empty() ? to_text(*parameters) : R"({"type":"object","properties":{}})";
    inner.keep(named.status());
  }
  fields.keep(inner.status());
  out.input.tools.push_back(std::move(decoded));
}

void decode_tools(Fields& fields, ChatRequest& out) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return;
  if (tools->size() > static_cast<size_t>(kToolsMax)) {
    fields.fail("tools", "at most " + std::to_string(kToolsMax) + " tools");
    return;
  }
  for (size_t i = 0; i < tools->size() && !fields.failed(); ++i) {
    decode_tool((*tools)[i], "tools[" + std::to_string(i) + "]", fields, out);
  }
}

/// A named function is "required" with that tool alone.
void decode_named_choice(const Json& choice, Fields& fields, ChatRequest& out) {
  Fields inner(choice, fields.path_of("tool_choice."));
  std::string name;
  if (const Json* function = inner.object("function")) {
    Fields named(*function, inner.path_of("function."));
    inner.keep(named.text("name", name).status());
  }
  if (name.empty()) inner.fail("function.name", "is required");
  auto& tools = out.input.tools;
  const auto found = std::ranges::find(tools, name, &engine::ChatTool::name);
  if (found == tools.end()) {
    inner.fail("function.name", "is not among the tools");
  } else {
    tools = {*found};
    out.input.tool_choice = engine::ToolChoice::kRequired;
  }
  fields.keep(inner.status());
}

void decode_tool_choice(Fields& fields, ChatRequest& out) {
  const Json* choice = fields.failed() ? nullptr : fields.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) return decode_named_choice(*choice, fields, out);
  const std::string word = choice->is_string() ? choice->get<std::string>() : std::string();
  if (word == "auto") {
    out.input.tool_choice = engine::ToolChoice::kAuto;
  } else if (word == "none") {
    out.input.tool_choice = engine::ToolChoice::kNone;
  } else if (word == "required") {
    out.input.tool_choice = engine::ToolChoice::kRequired;
    if (out.input.tools.empty()) fields.fail("tool_choice", "is 'required', but there are no tools");
  } else {
    fields.fail("tool_choice", "must be 'auto', 'none', 'required' or {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
}

void decode_response_format(Fields& fields, ChatRequest& out) {
  const Json* format = fields.object("response_format");
  if (format == nullptr) return;
  Fields inner(*format, fields.path_of("response_format."));
  std::string type;
  inner.text("type", type);
  if (type == "json_object") {
    const Json* schema = inner.object("schema");  // llama.cpp's form
    out.input.json_schema = schema != nullptr ? to_text(*schema) : "{}";
  } else if (type == "json_schema") {
    const Json* outer = inner.object("json_schema");
    const Json* schema = nullptr;
    if (outer != nullptr) {
      Fields named(*outer, inner.path_of("json_schema."));
      schema = named.object("schema");
      inner.keep(named.status());
    }
    if (schema == nullptr) inner.fail("json_schema.schema", "is required");
    else out.input.json_schema = to_text(*schema);
  } else if (type != "text") {
    inner.fail("type", "must be 'text', 'json_object' or 'json_schema'");
  }
  fields.keep(inner.status());
}

void decode_logprobs(Fields& fields, ChatRequest& out) {
  bool wanted = false;
  int32_t top = 0;
  fields.boolean("logprobs", wanted).integer("top_logprobs", 0, kTopLogprobsMax, top);
  if (wanted) out.common.sampling.top_logprobs = top;
  else if (top > 0) fields.fail("top_logprobs", "needs logprobs to be true");
}

void decode_template_kwargs(Fields& fields, ChatRequest& out) {
  const Json* kwargs = fields.object("chat_template_kwargs");
  if (kwargs == nullptr) return;
  for (const auto& [name, value] : kwargs->items()) out.input.template_kwargs[name] = to_text(value);
  const auto thinking = kwargs->find("enable_thinking");
  if (thinking != kwargs->end() && thinking->is_boolean()) out.input.enable_thinking = thinking->get<bool>();
}

/// Names of the tools whose results end the prompt, by the calls they answer.
std::vector<std::string> tools_of_results(const std::vector<engine::ChatMessage>& messages) {
  size_t first = messages.size();
  while (first > 0 && messages[first - 1].role == "tool") --first;
  std::vector<std::string> names;
  for (size_t i = first; i < messages.size(); ++i) {
    std::string name = messages[i].name;
    // Only the assistant message in front can have made these calls.
    if (first > 0) {
      const auto& calls = messages[first - 1].tool_calls;
      const auto call = std::ranges::find(calls, messages[i].tool_call_id, &engine::ToolCall::id);
      if (call != calls.end()) name = call->name;
    }
    if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

base::Result<ChatRequest> decode_chat(const Json& body, const DecodeOptions& options) {
  ChatRequest request;
  const auto messages = body.find("messages");
  if (messages == body.end()) return base::error(base::Code::kInvalidArgument, "messages: is required");
  auto decoded = decode_messages(*messages);
  if (!decoded) return tl::make_unexpected(std::move(decoded.error()));
  request.input.messages = std::move(*decoded);
  request.prior_tools = tools_of_results(request.input.messages);

  Fields fields(body, "");
  decode_generate_fields(fields, options, request.common);
  decode_tools(fields, request);
  decode_tool_choice(fields, request);
  fields.boolean("parallel_tool_calls", request.input.parallel_tool_calls).text("grammar", request.input.grammar);
  decode_response_format(fields, request);
  decode_logprobs(fields, request);
  decode_template_kwargs(fields, request);
  if (fields.failed()) return tl::make_unexpected(std::move(fields.status().error()));
  return request;
}

}  // namespace kvtide::server
