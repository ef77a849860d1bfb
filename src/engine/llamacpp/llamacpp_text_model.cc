#include "engine/llamacpp/llamacpp_text_model.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <random>

#include "base/hash.h"
#include "chat.h"
#include "common.h"
#include "engine/llamacpp/llamacpp_log.h"
#include "engine/llamacpp/llamacpp_sampler.h"
#include "json-schema-to-grammar.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;
using base::Status;

// llama.cpp's grammar and schema compilers recurse with the nesting of their input.
constexpr int kNestingMax = 128;
constexpr size_t kGrammarBytesMax = 1 << 20;

// Many small ChatML models have a template that knows no tools, though they take the common <tool_call> form as well as any. Their tool
// requests are rendered by this template instead; everything else by their own.
constexpr const char* kChatMlWithTools = R"jinja({%- if messages[0].role == 'system' %}
{%- set opening = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}
{%- set opening = 'You are a helpful assistant.' %}{%- set rest = messages %}
{%- endif %}
{{- '<|im_start|>system\n' + opening }}
{%- if tools %}
{{- '\n\n# Tools\n\nYou may call one or more functions. Their signatures stand within <tools></tools>:\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools>\n\nFor each call, return a JSON object with name and arguments within <tool_call></tool_call>:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in rest %}
{%- if message.role == 'tool' %}
{%- if loop.index0 == 0 or rest[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or rest[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})jinja";

/// How deep brackets nest in JSON or GBNF text, strings left out.
int nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '(' || c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ')' || c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Status check_nested(const char* field, std::string_view text) {
  if (text.size() > kGrammarBytesMax) return error(Code::kInvalidArgument, std::string(field) + " is too long");
  if (nesting(text) > kNestingMax) return error(Code::kInvalidArgument, std::string(field) + " is nested too deeply");
  return {};
}

/// `{}` asks for any JSON object; llama.cpp takes it for no schema.
std::string schema_text(const std::string& schema) {
  const bool empty_object = schema.find_first_not_of(" \t\r\n{}") == std::string::npos && !schema.empty();
  return empty_object ? R"({"type": "object"})" : schema;
}

/// A required call starts at once. llama.cpp's grammar lets any text stand in front of it (`root ::= ... until-7? tool-calls`), and a small
/// model then talks until its tokens are used up. A grammar of another make is left as it is.
std::string without_preamble(std::string grammar) {
  const size_t root = grammar.starts_with("root ::= ") ? 0 : grammar.find("\nroot ::= ");
  if (root == grammar.npos) return grammar;
  const size_t line_end = std::min(grammar.find('\n', root + 1), grammar.size());
  constexpr std::string_view kUntil = " until-";
  const size_t begin = grammar.find(kUntil, root);
  if (begin == grammar.npos || begin > line_end) return grammar;
  const size_t end = grammar.find_first_not_of("0123456789", begin + kUntil.size());
  if (end != grammar.npos && std::string_view(grammar).substr(end).starts_with("? tool-call")) grammar.erase(begin, end + 1 - begin);
  return grammar;
}

/// One call where parallel_tool_calls is off. For calls in markers of their own llama.cpp's grammar takes any number of them all the same
/// (`tool-calls ::= (...)+`). A grammar of another make is left as it is.
std::string with_one_call(std::string grammar) {
  constexpr std::string_view kRule = "tool-calls ::= ";
  const size_t rule = grammar.starts_with(kRule) ? 0 : grammar.find("\n" + std::string(kRule));
  if (rule == grammar.npos) return grammar;
  const size_t line_end = std::min(grammar.find('\n', rule + 1), grammar.size());
  if (grammar[line_end - 1] == '+') grammar.erase(line_end - 1, 1);
  return grammar;
}

std::string call_id(uint64_t salt, size_t index) {
  base::Sha256 hash;
  hash.update(std::as_bytes(std::span(&salt, 1))).update(std::to_string(index));
  const base::Digest digest = hash.digest();
  return "call_" + base::hex(std::span(digest).first(12));
}

uint64_t next_salt() {
  static std::atomic<uint64_t> counter{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

class LlamaCppReplyParser final : public ReplyParser {
 public:
  explicit LlamaCppReplyParser(common_chat_parser_params params) : params_(std::move(params)), salt_(next_salt()) {}

  Result<ParsedReply> parse(std::string_view text, bool partial) const override {
    const LogCapture quiet(true);
    try {
      common_chat_msg message = common_chat_parse(std::string(text), partial, params_);
      ParsedReply reply{.content = std::move(message.content), .reasoning_content = std::move(message.reasoning_content), .tool_calls = {}};
      for (auto& call : message.tool_calls) {
        // The same text must give the same id however often a growing reply is parsed.
        std::string id = call.id.empty() ? call_id(salt_, reply.tool_calls.size()) : std::move(call.id);
        reply.tool_calls.push_back({std::move(id), std::move(call.name), std::move(call.arguments)});
      }
      return reply;
    } catch (const std::exception& failure) {
      if (partial) return ParsedReply{};  // nothing can be said yet
      return error(Code::kInvalidArgument, failure.what());
    }
  }

 private:
  common_chat_parser_params params_;
  uint64_t salt_;
};

class LlamaCppTextModel final : public TextModel {
 public:
  LlamaCppTextModel(std::shared_ptr<const LlamaModel> model, common_chat_templates_ptr templates)
      : model_(std::move(model)), templates_(std::move(templates)) {
    thinking_ = common_chat_templates_support_enable_thinking(templates_.get());
    capabilities_ = common_chat_templates_get_caps(templates_.get());
    const bool own_tools = capabilities_["supports_tools"] || capabilities_["supports_tool_calls"];
    if (!own_tools && is_one_token("<|im_start|>") && is_one_token("<|im_end|>")) {
      tool_templates_ = common_chat_templates_init(model_->model, kChatMlWithTools);
      for (const auto& [name, able] : common_chat_templates_get_caps(tool_templates_.get())) {
        if (name.find("tool") != std::string::npos) capabilities_[name] = able;
      }
    }
    tools_ = own_tools || tool_templates_ != nullptr;
    parallel_calls_ = capabilities_["supports_parallel_tool_calls"];
    capabilities_["supports_thinking"] = thinking_;
    capabilities_["has_own_template"] = common_chat_templates_was_explicit(templates_.get());
    capabilities_["has_own_tool_template"] = own_tools;
    for (Token token = 0; token < llama_vocab_n_tokens(vocab()); ++token) {
      if (!llama_vocab_is_eog(vocab(), token)) continue;
      if (std::string text = piece(token, true); !text.empty()) end_texts_.push_back(std::move(text));
    }
  }

  Result<RenderedChat> render(const ChatInput& input) const override {
    if (auto ok = check(input); !ok) return tl::make_unexpected(ok.error());
    const LogCapture quiet(true);
    try {
      const common_chat_templates_inputs inputs = translate(input);
      const bool by_tool_template = tool_templates_ != nullptr && speaks_of_tools(input);
      common_chat_params params = common_chat_templates_apply(by_tool_template ? tool_templates_.get() : templates_.get(), inputs);
      RenderedChat out;
      auto grammar = make_grammar(input, inputs, params);
      if (!grammar) return tl::make_unexpected(grammar.error());
      out.grammar = std::move(*grammar);
      common_chat_parser_params parser(params);
      parser.reasoning_format = inputs.reasoning_format;
      parser.parse_tool_calls = !input.tools.empty() && input.tool_choice != ToolChoice::kNone;
      if (!params.parser.empty()) parser.parser.load(params.parser);
      out.parser = std::make_shared<const LlamaCppReplyParser>(std::move(parser));
      out.text = std::move(params.prompt);
      out.stops = std::move(params.additional_stops);
      return out;
    } catch (const std::exception& failure) {
      return error(Code::kInvalidArgument, failure.what());
    }
  }

  std::vector<Token> tokenize(std::string_view text, bool begin, bool special) const override {
    const LogCapture quiet(true);
    try {
      return common_tokenize(vocab(), std::string(text), begin, special);
    } catch (const std::exception&) {
      return {};
    }
  }

  std::string piece(Token token, bool special) const override {
    if (token < 0 || token >= llama_vocab_n_tokens(vocab())) return {};
    return common_token_to_piece(vocab(), token, special);
  }

  bool is_end(Token token) const override {
    return token >= 0 && token < llama_vocab_n_tokens(vocab()) && llama_vocab_is_eog(vocab(), token);
  }

  const std::vector<std::string>& end_texts() const override { return end_texts_; }
  std::map<std::string, bool> capabilities() const override { return capabilities_; }

 private:
  const llama_vocab* vocab() const { return model_->vocab(); }

  bool is_one_token(const char* text) const { return common_tokenize(vocab(), text, false, true).size() == 1; }

  static bool speaks_of_tools(const ChatInput& input) {
    return !input.tools.empty() || std::any_of(input.messages.begin(), input.messages.end(), [](const ChatMessage& message) {
      return message.role == "tool" || !message.tool_calls.empty();
    });
  }

  Status check(const ChatInput& input) const {
    if (!input.grammar.empty() && !input.json_schema.empty()) {
      return error(Code::kInvalidArgument, "a grammar excludes a JSON schema");
    }
    if (!input.grammar.empty() && !input.tools.empty() && input.tool_choice != ToolChoice::kNone) {
      return error(Code::kInvalidArgument, "a grammar excludes tools");
    }
    if (input.tool_choice == ToolChoice::kRequired && input.tools.empty()) {
      return error(Code::kInvalidArgument, "tool_choice asks for a tool and there are none");
    }
    if (input.tool_choice == ToolChoice::kRequired && !tools_) {
      return error(Code::kInvalidArgument, "tool_choice: the chat template of this model knows no tools");
    }
    if (input.grammar.starts_with("%llguidance")) return error(Code::kInvalidArgument, "only GBNF grammars are supported");
    if (auto ok = check_nested("grammar", input.grammar); !ok) return ok;
    if (auto ok = check_nested("json_schema", input.json_schema); !ok) return ok;
    for (const ChatTool& tool : input.tools) {
      if (auto ok = check_nested("tools", tool.parameters); !ok) return ok;
    }
    for (const auto& [key, value] : input.template_kwargs) {
      if (auto ok = check_nested("chat_template_kwargs", value); !ok) return ok;
    }
    return {};
  }

  common_chat_templates_inputs translate(const ChatInput& input) const {
    common_chat_templates_inputs out;
    for (const ChatMessage& message : input.messages) {
      common_chat_msg msg;
      msg.role = message.role;
      msg.content = message.content;
      msg.reasoning_content = message.reasoning_content;
      msg.tool_call_id = message.tool_call_id;
      msg.tool_name = message.name;
      for (const ToolCall& call : message.tool_calls) msg.tool_calls.push_back({call.name, call.arguments, call.id});
      out.messages.push_back(std::move(msg));
    }
    for (const ChatTool& tool : input.tools) {
      out.tools.push_back({tool.name, tool.description, tool.parameters.empty() ? R"({"type": "object"})" : tool.parameters});
    }
    switch (input.tool_choice) {
      case ToolChoice::kAuto: out.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO; break;
      case ToolChoice::kRequired: out.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED; break;
      case ToolChoice::kNone: out.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE; break;
    }
    out.parallel_tool_calls = input.parallel_tool_calls && parallel_calls_;
    out.json_schema = schema_text(input.json_schema);
    out.grammar = input.grammar;
    out.chat_template_kwargs = input.template_kwargs;
    out.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    out.enable_thinking = input.enable_thinking.value_or(thinking_);
    if (const auto wish = input.template_kwargs.find("enable_thinking"); wish != input.template_kwargs.end()) {
      if (wish->second != "true" && wish->second != "false") {
        throw std::invalid_argument("chat_template_kwargs.enable_thinking must be true or false");
      }
      out.enable_thinking = wish->second == "true";
    }
    return out;
  }

  /// Null when the reply is free text. Compiled once here, so that a grammar that does not compile is the request's error.
  Result<std::shared_ptr<const Grammar>> make_grammar(const ChatInput& input, const common_chat_templates_inputs& inputs,
                                                      common_chat_params& params) const {
    auto out = std::make_shared<LlamaCppGrammar>();
    if (!input.grammar.empty()) {
      out->grammar = {COMMON_GRAMMAR_TYPE_USER, input.grammar};
    } else if (!params.grammar.empty()) {
      const auto type = input.json_schema.empty() ? COMMON_GRAMMAR_TYPE_TOOL_CALLS : COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT;
      out->grammar = {type, input.tool_choice == ToolChoice::kRequired ? without_preamble(params.grammar) : params.grammar};
      if (!input.parallel_tool_calls && type == COMMON_GRAMMAR_TYPE_TOOL_CALLS) out->grammar.grammar = with_one_call(out->grammar.grammar);
      out->lazy = params.grammar_lazy;
      out->generation_prompt = params.generation_prompt;
      if (auto ok = take_triggers(params, *out); !ok) return tl::make_unexpected(ok.error());
      if (!params.thinking_start_tag.empty()) {
        out->thinking_start = common_tokenize(vocab(), params.thinking_start_tag, false, true);
        for (const auto& tag : params.thinking_end_tags) out->thinking_ends.push_back(common_tokenize(vocab(), tag, false, true));
      }
    } else if (!inputs.json_schema.empty()) {  // this template's handler knows no response format
      out->grammar = {COMMON_GRAMMAR_TYPE_USER, json_schema_to_grammar(common_json::parse(inputs.json_schema))};
    } else {
      return std::shared_ptr<const Grammar>();
    }
    const LogCapture capture(true);
    llama_sampler* compiled = llama_sampler_init_grammar(vocab(), out->grammar.grammar.c_str(), "root");
    if (compiled == nullptr) {
      return error(Code::kInvalidArgument, std::string(input.grammar.empty() ? "json_schema" : "grammar") + " does not compile");
    }
    llama_sampler_free(compiled);
    return std::shared_ptr<const Grammar>(std::move(out));
  }

  /// A trigger word that is one token triggers as that token, which then must not be split.
  Status take_triggers(const common_chat_params& params, LlamaCppGrammar& out) const {
    for (const std::string& text : params.preserved_tokens) {
      const auto ids = common_tokenize(vocab(), text, false, true);
      if (ids.size() == 1) out.preserved_tokens.insert(ids[0]);
    }
    for (const common_grammar_trigger& trigger : params.grammar_triggers) {
      common_grammar_trigger taken = trigger;
      if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
        const auto ids = common_tokenize(vocab(), trigger.value, false, true);
        if (ids.size() == 1 && out.preserved_tokens.contains(ids[0])) {
          taken.type = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
          taken.token = ids[0];
        }
      }
      out.triggers.push_back(std::move(taken));
    }
    if (out.lazy && out.triggers.empty()) return error(Code::kInvalidArgument, "the template gives no trigger for its tool calls");
    return {};
  }

  std::shared_ptr<const LlamaModel> model_;  // shared with the engine
  common_chat_templates_ptr templates_;
  common_chat_templates_ptr tool_templates_;  // null: templates_ knows tools, or nobody does
  bool tools_ = false;
  bool thinking_ = false;
  bool parallel_calls_ = false;
  std::map<std::string, bool> capabilities_;
  std::vector<std::string> end_texts_;
};

}  // namespace

Result<std::unique_ptr<TextModel>> make_llamacpp_text_model(std::shared_ptr<const LlamaModel> model) {
  const LogCapture quiet(true);
  try {
    auto templates = common_chat_templates_init(model->model, "");
    return std::make_unique<LlamaCppTextModel>(std::move(model), std::move(templates));
  } catch (const std::exception& failure) {
    return error(Code::kInvalidArgument, std::string("the model's chat template does not work: ") + failure.what());
  }
}

}  // namespace kvtide::engine
