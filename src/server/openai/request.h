// Bodies of /v1/chat/completions and /v1/completions as structs.
//
// Unknown fields are ignored; a known field of a wrong type or range is an error that names it. Hints are not read here.
//
// Threading: free functions, thread-safe. Cost: O(body).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/api/text_model.h"
#include "server/openai/json_fields.h"

namespace kvtide::server {

inline constexpr int kChoicesMax = 16;
inline constexpr int kStopsMax = 16;
inline constexpr int kTopLogprobsMax = 20;
inline constexpr int kToolsMax = 1024;
inline constexpr size_t kStopBytesMax = 1024;
inline constexpr size_t kSaltBytesMax = 512;

/// What both endpoints share.
struct GenerateFields {
  std::string model;
  engine::SamplingParams sampling;
  std::vector<std::string> stops;
  int32_t max_tokens = -1;
  int32_t choices = 1;  // n
  bool stream = false;
  bool include_usage = false;
  std::string cache_salt;
  std::optional<std::string> forced_reply;
};

struct ChatRequest {
  GenerateFields common;
  engine::ChatInput input;
  std::vector<std::string> prior_tools;  // whose results end the messages
};

struct CompletionRequest {
  GenerateFields common;
  std::variant<std::string, std::vector<engine::Token>> prompt;
};

struct DecodeOptions {
  int32_t vocab_tokens = 0;  // token ids in a request are below this
  bool allow_forced_replies = false;
};

/// Errors: kInvalidArgument. REQUIRES: `body` is an object.
base::Result<ChatRequest> decode_chat(const Json& body, const DecodeOptions& options);
base::Result<CompletionRequest> decode_completion(const Json& body, const DecodeOptions& options);

/// Parts of the above, in files of their own.
base::Result<std::vector<engine::ChatMessage>> decode_messages(const Json& messages);
void decode_generate_fields(Fields& fields, const DecodeOptions& options, GenerateFields& out);

}  // namespace kvtide::server
