// Bodies of chat and text completions from strangers: decoding never throws, and what it accepts is within the limits.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "server/openai/prepare.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtide;
  if (size == 0) return 0;
  const auto kind = (data[0] & 1) != 0 ? server::ReplyKind::kChat : server::ReplyKind::kCompletion;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  server::GenerationOptions options;
  options.allow_forced_replies = true;
  engine::EngineInfo info;
  info.vocab_tokens = 1000;
  const auto decoded = server::decode_request(body, {}, kind, options, info);
  if (!decoded) {
    KV_CHECK(!decoded.error().message.empty());
    return 0;
  }
  if (decoded->manage) return 0;
  const server::GenerateFields& common = decoded->common();
  KV_CHECK(common.choices >= 1 && common.choices <= server::kChoicesMax);
  KV_CHECK(common.stops.size() <= static_cast<size_t>(server::kStopsMax));
  KV_CHECK(common.max_tokens == -1 || common.max_tokens > 0);
  KV_CHECK(common.sampling.top_logprobs <= server::kTopLogprobsMax);
  KV_CHECK(common.cache_salt.size() <= server::kSaltBytesMax);
  for (const auto& [token, bias] : common.sampling.logit_bias) KV_CHECK(token >= 0 && token < info.vocab_tokens);
  return 0;
}
