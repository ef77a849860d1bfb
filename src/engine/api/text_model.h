// The text seam: templates, tokens and reply parsing of one model.
//
// Threading: thread-safe; every method is const and may be called from HTTP threads while the loop steps the engine.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api/engine.h"

namespace kvtide::engine {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};

struct ChatMessage {
  std::string role;  // system, developer, user, assistant, tool
  std::string content;
  std::string reasoning_content;
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;
  std::string name;
};

struct ChatTool {
  std::string name;
  std::string description;
  std::string parameters;  // JSON schema text
};

enum class ToolChoice { kAuto, kRequired, kNone };

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::vector<ChatTool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  bool parallel_tool_calls = true;
  std::string json_schema;  // JSON text; empty: free text. "{}" asks for any JSON object
  std::string grammar;      // GBNF; excludes json_schema and tools
  std::map<std::string, std::string> template_kwargs;  // chat_template_kwargs, values as JSON text
  std::optional<bool> enable_thinking;
};

struct ParsedReply {
  std::string content;
  std::string reasoning_content;
  std::vector<ToolCall> tool_calls;
};

/// Turns the generated text of one reply into content, reasoning and tool calls. Thread-safe.
class ReplyParser {
 public:
  virtual ~ReplyParser() = default;
  /// `partial` text may end anywhere: what can already be said is returned, and a longer text never takes back what a shorter one said.
  /// Errors: kInvalidArgument when a complete text does not parse (the raw text is then the content to show).
  virtual base::Result<ParsedReply> parse(std::string_view text, bool partial) const = 0;
};

struct RenderedChat {
  std::string text;  // the prompt, ready to tokenise with special tokens
  std::shared_ptr<const Grammar> grammar;       // null: free text
  std::shared_ptr<const ReplyParser> parser;    // never null
  std::vector<std::string> stops;               // extra stop strings of this template
};

class TextModel {
 public:
  virtual ~TextModel() = default;

  /// Errors: kInvalidArgument (the template rejects the messages; the schema does not compile), with the template's own words.
  virtual base::Result<RenderedChat> render(const ChatInput& input) const = 0;

  /// Token ids of `text`, special tokens recognised when `special`. `begin` adds what the model wants at the start (BOS), if anything.
  virtual std::vector<Token> tokenize(std::string_view text, bool begin, bool special) const = 0;

  /// The bytes of one token; may be part of a UTF-8 character. Special tokens give their text when `special`, else nothing.
  virtual std::string piece(Token token, bool special) const = 0;

  virtual bool is_end(Token token) const = 0;  // end of generation

  /// Texts that end a turn in a rendered prompt (e.g. "<|im_end|>"); replies in a rendered prompt end in front of one of them.
  virtual const std::vector<std::string>& end_texts() const = 0;

  /// What the template can do, by name, for /kv/v1/capabilities.
  virtual std::map<std::string, bool> capabilities() const = 0;
};

}  // namespace kvtide::engine
