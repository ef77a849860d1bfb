#include "server/openai/prepare.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "hint/precedence.h"

namespace kvtide::server {
namespace {

using base::Code;

// Fields that are big and hold no hints. Dialects want to know at most whether there is something in them.
constexpr std::array<std::string_view, 6> kBulk{"messages", "prompt", "tools", "response_format", "functions", "logit_bias"};

/// The body as the hint dialects need it: without what is bulky.
nlohmann::json hint_view(const Json& body) {
  nlohmann::json view = nlohmann::json::object();
  for (const auto& [name, value] : body.items()) {
    const bool bulk = std::ranges::find(kBulk, name) != kBulk.end();
    if (!bulk) {
      view[name] = nlohmann::json(value);
    } else if (value.is_null()) {
      view[name] = nullptr;
    } else if (value.is_array() && value.empty()) {
      view[name] = nlohmann::json::array();
    } else {
      view[name] = nlohmann::json::array({nullptr});
    }
  }
  return view;
}

hint::Hints read_hints(const Json& body, const Headers& headers) {
  std::vector<hint::Header> views;
  views.reserve(headers.size());
  for (const auto& [name, value] : headers) views.push_back({name, value});
  return hint::decode_body(hint_view(body), views);
}

base::Status check_model(const std::string& wanted, const GenerationOptions& options) {
  const bool known = wanted == options.model_name || wanted == options.other_name;
  if (options.strict_model && !known) return base::error(Code::kNotFound, "model: this server serves " + options.model_name + " only");
  return {};
}

}  // namespace

const GenerateFields& Decoded::common() const {
  return std::visit([](const auto& one) -> const GenerateFields& { return one.common; }, request);
}

base::Result<Decoded> decode_request(const std::string& body, const Headers& headers, ReplyKind kind, const GenerationOptions& options,
                                     const engine::EngineInfo& info) {
  auto json = parse_object(body);
  if (!json) return tl::make_unexpected(std::move(json.error()));
  Decoded decoded;
  decoded.hints = read_hints(*json, headers);
  if (decoded.hints.manage_request) {
    decoded.manage = true;
    return decoded;
  }
  const DecodeOptions limits{.vocab_tokens = info.vocab_tokens, .allow_forced_replies = options.allow_forced_replies};
  if (kind == ReplyKind::kChat) {
    auto chat = decode_chat(*json, limits);
    if (!chat) return tl::make_unexpected(std::move(chat.error()));
    decoded.request = std::move(*chat);
  } else {
    auto completion = decode_completion(*json, limits);
    if (!completion) return tl::make_unexpected(std::move(completion.error()));
    decoded.request = std::move(*completion);
  }
  if (auto model = check_model(decoded.common().model, options); !model) return tl::make_unexpected(std::move(model.error()));
  return decoded;
}

base::Result<Prepared> prepare(Decoded decoded, const std::string& tenant, serving::Service& service) {
  Prepared prepared;
  serving::GenerateRequest& request = prepared.request;
  GenerateFields common = decoded.common();
  request.tenant = tenant;
  request.cache_salt = std::move(common.cache_salt);
  request.sampling = std::move(common.sampling);
  request.stops = std::move(common.stops);
  request.max_tokens = common.max_tokens;
  request.hints = std::move(decoded.hints);
  prepared.choices = common.choices;
  prepared.stream = common.stream;
  prepared.include_usage = common.include_usage;
  prepared.logprobs = request.sampling.top_logprobs >= 0;

  if (auto* chat = std::get_if<ChatRequest>(&decoded.request)) {
    auto rendered = service.text_model().render(chat->input);
    if (!rendered) return tl::make_unexpected(std::move(rendered.error()));
    request.prompt = service.tokenize_prompt(tenant, rendered->text);
    request.prompt_text = std::move(rendered->text);
    request.special_text = !chat->input.tools.empty();
    request.prior_tools = std::move(chat->prior_tools);
    request.sampling.grammar = std::move(rendered->grammar);
    for (std::string& stop : rendered->stops) request.stops.push_back(std::move(stop));
    prepared.parser = std::move(rendered->parser);
  } else {
    auto& prompt = std::get<CompletionRequest>(decoded.request).prompt;
    if (auto* text = std::get_if<std::string>(&prompt)) {
      request.prompt = service.tokenize_prompt(tenant, *text);
      request.prompt_text = std::move(*text);
    } else {
      request.prompt = std::get<std::vector<engine::Token>>(std::move(prompt));
    }
  }
  if (common.forced_reply) request.forced_reply = service.text_model().tokenize(*common.forced_reply, false, false);
  if (request.prompt.empty()) return base::error(Code::kInvalidArgument, "the prompt has no tokens");
  return prepared;
}

}  // namespace kvtide::server
