#include "server/openai/reply_json.h"

#include "server/openai/reply_diff.h"

namespace kvtide::server {
namespace {

/// log(0) has no JSON; OpenAI's servers show this instead.
double finite(float logprob) { return logprob > -9999.0F ? static_cast<double>(logprob) : -9999.0; }

Json token_json(engine::Token token, float logprob, const engine::TextModel& text_model) {
  const std::string piece = text_model.piece(token, true);
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  Json entry;
  entry["token"] = piece;
  entry["logprob"] = finite(logprob);
  entry["bytes"] = std::move(bytes);
  return entry;
}

}  // namespace

Json usage_json(std::span<const Choice> choices, int32_t prompt_tokens) {
  int64_t completion = 0;
  for (const Choice& choice : choices) completion += choice.tokens;
  const int32_t cached = choices.empty() ? 0 : choices[0].kv.device_tokens + choices[0].kv.host_tokens;
  Json usage;
  usage["prompt_tokens"] = prompt_tokens;
  usage["completion_tokens"] = completion;
  usage["total_tokens"] = prompt_tokens + completion;
  usage["prompt_tokens_details"] = {{"cached_tokens", cached}};
  return usage;
}

Json kv_json(const serving::KvReport& kv) {
  Json out;
  out["session_id"] = kv.session_id;
  out["derived"] = kv.session_derived;
  out["generation"] = kv.generation;
  out["prompt_tokens"] = kv.prompt_tokens;
  out["reused"] = {{"device", kv.device_tokens}, {"host", kv.host_tokens}};
  out["recomputed"] = kv.recomputed_tokens;
  out["compulsory"] = kv.compulsory_tokens;
  out["load_ms"] = kv.load_ms;
  out["queue_ms"] = kv.queue_ms;
  out["prompt_ms"] = kv.prompt_ms;
  out["predicted_ms"] = kv.predicted_ms;
  out["miss"] = nullptr;
  if (kv.miss != serving::MissReason::kNone) {
    Json miss;
    miss["reason"] = serving::miss_reason_name(kv.miss);
    miss["token"] = kv.miss_token >= 0 ? Json(kv.miss_token) : Json();
    miss["rule"] = kv.miss_rule.empty() ? Json() : Json(kv.miss_rule);
    out["miss"] = std::move(miss);
  }
  return out;
}

Json chat_logprobs_json(std::span<const engine::Sample> samples, const engine::TextModel& text_model) {
  Json content = Json::array();
  for (const engine::Sample& sample : samples) {
    Json entry = token_json(sample.token, sample.logprob, text_model);
    Json top = Json::array();
    for (const engine::TokenLogprob& other : sample.top) top.push_back(token_json(other.token, other.logprob, text_model));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  Json out;
  out["content"] = std::move(content);
  out["refusal"] = nullptr;
  return out;
}

Json legacy_logprobs_json(std::span<const engine::Sample> samples, const engine::TextModel& text_model, size_t offset_bytes) {
  Json tokens = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const engine::Sample& sample : samples) {
    const std::string piece = text_model.piece(sample.token, true);
    Json top = Json::object();
    for (const engine::TokenLogprob& other : sample.top) top[text_model.piece(other.token, true)] = finite(other.logprob);
    tokens.push_back(piece);
    logprobs.push_back(finite(sample.logprob));
    tops.push_back(std::move(top));
    offsets.push_back(offset_bytes);
    offset_bytes += piece.size();
  }
  Json out;
  out["tokens"] = std::move(tokens);
  out["token_logprobs"] = std::move(logprobs);
  out["top_logprobs"] = std::move(tops);
  out["text_offset"] = std::move(offsets);
  return out;
}

Json envelope_json(const Envelope& envelope, std::string_view object) {
  Json out;
  out["id"] = envelope.id;
  out["object"] = object;
  out["created"] = envelope.created_s;
  out["model"] = envelope.model;
  return out;
}

Json message_json(const engine::ParsedReply& reply) {
  Json message;
  message["role"] = "assistant";
  message["content"] = reply.content.empty() && !reply.tool_calls.empty() ? Json() : Json(reply.content);
  if (!reply.reasoning_content.empty()) message["reasoning_content"] = reply.reasoning_content;
  if (reply.tool_calls.empty()) return message;
  Json calls = Json::array();
  for (const engine::ToolCall& call : reply.tool_calls) {
    Json entry;
    entry["id"] = call.id.empty() ? make_id("call_") : call.id;
    entry["type"] = "function";
    entry["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    calls.push_back(std::move(entry));
  }
  message["tool_calls"] = std::move(calls);
  return message;
}

Json management_json(const Envelope& envelope, std::string_view object, Json kv_hint_result) {
  Json choice;
  choice["index"] = 0;
  if (object == "text_completion") choice["text"] = "";
  else choice["message"] = {{"role", "assistant"}, {"content", ""}};
  choice["finish_reason"] = "stop";
  Json out = envelope_json(envelope, object);
  out["choices"] = Json::array({std::move(choice)});
  out["usage"] = usage_json({}, 0);
  out["kv_hint_result"] = std::move(kv_hint_result);
  return out;
}

std::string sse(const Json& value) { return "data: " + to_text(value) + "\n\n"; }

}  // namespace kvtide::server
