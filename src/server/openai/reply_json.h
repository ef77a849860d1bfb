// The JSON of answers: usage, the kv object, log probabilities, whole answers and stream chunks.
//
// Threading: free functions, thread-safe.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/openai/json_fields.h"
#include "serving/service.h"

namespace kvtide::server {

/// One choice while and after it is generated.
struct Choice {
  std::string text;                      // raw, as generated
  std::vector<engine::Sample> samples;   // when log probabilities were asked for
  int32_t tokens = 0;
  bool done = false;
  serving::FinishReason finish = serving::FinishReason::kStop;
  serving::KvReport kv;
  std::vector<hint::Receipt> receipts;
};

/// What is the same in every object of one answer.
struct Envelope {
  std::string id;
  std::string model;
  int64_t created_s = 0;
};

/// Usage over all choices; the prompt counts once.
Json usage_json(std::span<const Choice> choices, int32_t prompt_tokens);
/// What the cache did (protocol/openapi.yaml).
Json kv_json(const serving::KvReport& kv);

/// `choices[].logprobs` of chat answers, and OpenAI's older form. `offset_bytes`: where the first sample starts in the text.
Json chat_logprobs_json(std::span<const engine::Sample> samples, const engine::TextModel& text_model);
Json legacy_logprobs_json(std::span<const engine::Sample> samples, const engine::TextModel& text_model, size_t offset_bytes);

/// {"id", "object", "created", "model"}
Json envelope_json(const Envelope& envelope, std::string_view object);

/// The assistant message of a parsed reply; calls without an id get one.
Json message_json(const engine::ParsedReply& reply);

/// The answer of a management request: an empty message, as clients insist on a choice.
Json management_json(const Envelope& envelope, std::string_view object, Json kv_hint_result);

/// "data: ...\n\n"
std::string sse(const Json& value);

}  // namespace kvtide::server
