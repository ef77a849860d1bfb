// The body of /v1/completions, OpenAI's older form.
#include "server/openai/request.h"

namespace kvtide::server {
namespace {

void decode_tokens(const Json& tokens, Fields& fields, const DecodeOptions& options, CompletionRequest& out) {
  std::vector<engine::Token> decoded;
  decoded.reserve(tokens.size());
  for (const Json& token : tokens) {
    const auto id = whole_number(token, 0, options.vocab_tokens - 1);
    if (!id) {
      fields.fail("prompt", "token ids are whole numbers from 0 to " + std::to_string(options.vocab_tokens - 1));
      return;
    }
    decoded.push_back(static_cast<engine::Token>(*id));
  }
  out.prompt = std::move(decoded);
}

void decode_prompt(Fields& fields, const DecodeOptions& options, CompletionRequest& out) {
  const Json* prompt = fields.failed() ? nullptr : fields.find("prompt");
  if (prompt == nullptr) {
    fields.fail("prompt", "is required");
    return;
  }
  // A batch of one is its only member.
  if (prompt->is_array() && prompt->size() == 1 && (prompt->front().is_string() || prompt->front().is_array())) prompt = &prompt->front();
  if (prompt->is_string()) {
    out.prompt = prompt->get<std::string>();
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    decode_tokens(*prompt, fields, options, out);
  } else {
    fields.fail("prompt", "must be one string or one array of token ids");
  }
}

void refuse_unsupported(Fields& fields, const GenerateFields& common) {
  bool echo = false;
  std::string suffix;
  int32_t best_of = common.choices;
  fields.boolean("echo", echo).text("suffix", suffix).integer("best_of", 1, kChoicesMax, best_of);
  if (echo) fields.fail("echo", "is not supported");
  if (!suffix.empty()) fields.fail("suffix", "is not supported");
  if (best_of != common.choices) fields.fail("best_of", "is supported only when it equals n");
}

}  // namespace

base::Result<CompletionRequest> decode_completion(const Json& body, const DecodeOptions& options) {
  CompletionRequest request;
  Fields fields(body, "");
  decode_generate_fields(fields, options, request.common);
  decode_prompt(fields, options, request);
  refuse_unsupported(fields, request.common);
  fields.integer("logprobs", 0, kTopLogprobsMax, request.common.sampling.top_logprobs);
  if (fields.failed()) return tl::make_unexpected(std::move(fields.status().error()));
  return request;
}

}  // namespace kvtide::server
