// Sampling, limits and stream options: what chat and text completions share.
#include <algorithm>
#include <charconv>

#include "server/openai/request.h"

namespace kvtide::server {
namespace {

constexpr int64_t kInt32Max = 2147483647;

void decode_stops(Fields& fields, GenerateFields& out) {
  const Json* stop = fields.failed() ? nullptr : fields.find("stop");
  if (stop == nullptr) return;
  const auto add = [&](const Json& value) {
    if (!value.is_string()) {
      fields.fail("stop", "must be a string or an array of strings");
    } else if (value.get_ref<const std::string&>().size() > kStopBytesMax) {
      fields.fail("stop", "a stop string has at most " + std::to_string(kStopBytesMax) + " bytes");
    } else if (!value.get_ref<const std::string&>().empty()) {
      out.stops.push_back(value.get<std::string>());
    }
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > static_cast<size_t>(kStopsMax)) {
    fields.fail("stop", "at most " + std::to_string(kStopsMax) + " stop strings");
    return;
  }
  for (const Json& value : *stop) add(value);
}

void decode_seed(Fields& fields, GenerateFields& out) {
  const Json* seed = fields.failed() ? nullptr : fields.find("seed");
  if (seed == nullptr) return;
  if (!seed->is_number_integer()) {
    fields.fail("seed", "must be a whole number");
    return;
  }
  const auto value = seed->get<int64_t>();
  if (value == -1) return;  // llama.cpp's way to say "random"
  out.sampling.seed = static_cast<uint32_t>(static_cast<uint64_t>(value) ^ (static_cast<uint64_t>(value) >> 32U));
}

void decode_logit_bias(Fields& fields, const DecodeOptions& options, GenerateFields& out) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    engine::Token token = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token < 0 || token >= options.vocab_tokens) {
      fields.fail("logit_bias", "keys are token ids from 0 to " + std::to_string(options.vocab_tokens - 1));
      return;
    }
    const double amount = value.is_number() ? value.get<double>() : 1000;
    if (!(amount >= -100 && amount <= 100)) {
      fields.fail("logit_bias", "values are numbers from -100 to 100");
      return;
    }
    out.sampling.logit_bias.emplace_back(token, static_cast<float>(amount));
  }
}

void decode_max_tokens(Fields& fields, GenerateFields& out) {
  // The newer name wins. -1 means no limit, as in llama.cpp.
  int32_t limit = -1;
  fields.integer("max_tokens", -1, kInt32Max, limit).integer("max_completion_tokens", -1, kInt32Max, limit);
  if (limit == 0) fields.fail(fields.find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens", "must not be 0");
  out.max_tokens = limit;
}

}  // namespace

void decode_generate_fields(Fields& fields, const DecodeOptions& options, GenerateFields& out) {
  auto& sampling = out.sampling;
  fields.text("model", out.model)
      .number("temperature", 0, 100, sampling.temperature)
      .number("top_p", 0, 1, sampling.top_p)
      .integer("top_k", -1, kInt32Max, sampling.top_k)
      .number("min_p", 0, 1, sampling.min_p)
      .number("repeat_penalty", 0.01, 100, sampling.repeat_penalty)
      .number("repetition_penalty", 0.01, 100, sampling.repeat_penalty)  // vLLM's name
      .integer("repeat_last_n", 0, 65536, sampling.repeat_last_n)
      .number("frequency_penalty", -2, 2, sampling.frequency_penalty)
      .number("presence_penalty", -2, 2, sampling.presence_penalty)
      .boolean("ignore_eos", sampling.ignore_eos)
      .integer("n", 1, kChoicesMax, out.choices)
      .boolean("stream", out.stream)
      .text("cache_salt", out.cache_salt);
  if (out.cache_salt.size() > kSaltBytesMax) fields.fail("cache_salt", "has at most " + std::to_string(kSaltBytesMax) + " bytes");
  decode_stops(fields, out);
  decode_seed(fields, out);
  decode_logit_bias(fields, options, out);
  decode_max_tokens(fields, out);
  if (const Json* stream_options = fields.object("stream_options")) {
    Fields inner(*stream_options, fields.path_of("stream_options."));
    fields.keep(inner.boolean("include_usage", out.include_usage).status());
  }
  std::string forced;
  fields.text("kvtide_forced_reply", forced);
  if (fields.find("kvtide_forced_reply") != nullptr) {
    if (!options.allow_forced_replies) fields.fail("kvtide_forced_reply", "this server was not started with --allow-forced-replies");
    out.forced_reply = std::move(forced);
  }
}

}  // namespace kvtide::server
