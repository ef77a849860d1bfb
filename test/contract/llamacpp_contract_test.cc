// The contract on llama.cpp with a real model: both layouts, with and without flash attention, and with a quantised cache.
#include <cstdio>

#include "engine/llamacpp/llamacpp.h"
#include "engine_contract.h"
#include "model_for_tests.h"

namespace kvtide::engine {
namespace {

LlamaCppOptions options(LayoutChoice layout, FlashAttention flash, const char* cache_type = "f16") {
  LlamaCppOptions out;
  out.model_path = model_for_tests();
  out.n_gpu_layers = 0;
  out.layout = layout;
  out.flash_attn = flash;
  out.cache_type_k = out.cache_type_v = cache_type;
  out.ctx_size = 512;
  out.parallel = 3;
  out.device_tokens = layout == LayoutChoice::kLanes ? 3 * 512 : 768;
  out.block_tokens = 16;
  out.batch_size = 512;
  out.ubatch_size = 128;  // several passes in a step of the tests
  out.threads = 1;
  out.log = [](LogLevel, std::string_view line) { std::fprintf(stderr, "llama: %.*s\n", static_cast<int>(line.size()), line.data()); };
  return out;
}

EngineCase llama(const char* name, const LlamaCppOptions& with, bool place_matters) {
  return {name,
          [with]() -> std::shared_ptr<Engine> {
            auto loaded = load(with);
            if (!loaded) {
              ADD_FAILURE() << loaded.error().message;
              return nullptr;
            }
            return std::move(loaded->engine);
          },
          place_matters};
}

std::vector<EngineCase> cases() {
  if (model_for_tests().empty()) return {};
  return {llama("Lanes", options(LayoutChoice::kLanes, FlashAttention::kOff), false),
          llama("LanesFlash", options(LayoutChoice::kLanes, FlashAttention::kOn), false),
          llama("Unified", options(LayoutChoice::kUnified, FlashAttention::kOff), true),
          llama("UnifiedFlash", options(LayoutChoice::kUnified, FlashAttention::kOn), true),
          llama("UnifiedFlashQ8", options(LayoutChoice::kUnified, FlashAttention::kOn, "q8_0"), true)};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EngineContract);
INSTANTIATE_TEST_SUITE_P(LlamaCpp, EngineContract, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST(LlamaCppModel, IsThere) {
  if (model_for_tests().empty()) GTEST_SKIP() << kNoModel;
}

/// Logits of the same chain differ with the shape of the batches that computed it. Printed, so that people know
/// what to expect of the model alone. The loose bound only catches nonsense: it proves nothing about reuse, the exact tests above do.
TEST(LlamaCppNoise, OfBatchShapesAlone) {
  if (model_for_tests().empty()) GTEST_SKIP() << kNoModel;
  for (const auto layout : {LayoutChoice::kLanes, LayoutChoice::kUnified}) {
    auto loaded = load(options(layout, FlashAttention::kOff));
    ASSERT_TRUE(loaded.has_value());
    Engine& engine = *loaded->engine;
    const auto tokens = loaded->text->tokenize(
        "The harbour master wrote down every ship, its cargo and the hour of its arrival, for forty years, in the same blue ledger. "
        "When the ledger was full he bought another one, and when he retired there were sixty of them, and nobody had read one.",
        true, false);
    const auto prefill = [&](SeqId seq, size_t chunk, const std::vector<StepItem>& beside) {
      for (size_t at = 0; at < tokens.size(); at += chunk) {
        const std::span part(tokens.data() + at, std::min(chunk, tokens.size() - at));
        std::vector<StepItem> items{{.seq = seq, .pos = static_cast<int32_t>(at), .tokens = part, .want_logits = true}};
        if (at == 0) items.insert(items.end(), beside.begin(), beside.end());
        EXPECT_TRUE(engine.step(items).has_value());
      }
      std::vector<float> out(engine.logits(0).begin(), engine.logits(0).end());
      engine.truncate(seq, 0);
      return out;
    };
    const auto at_once = prefill(SeqId{0}, tokens.size(), {});
    const auto again = prefill(SeqId{0}, tokens.size(), {});
    const auto chunks = prefill(SeqId{0}, 16, {});
    const auto single = prefill(SeqId{0}, 1, {});
    const std::vector<Token> other(33, 50);
    const auto alongside = prefill(SeqId{0}, tokens.size(), {{.seq = SeqId{1}, .pos = 0, .tokens = other, .want_logits = false}});
    const char* name = layout == LayoutChoice::kLanes ? "lanes" : "unified";
    std::printf("[  noise   ] %s, %zu tokens, max abs logit difference: again %.2g, in chunks of 16 %.2g, one by one %.2g, beside others %.2g\n",
                name, tokens.size(), static_cast<double>(largest_difference(at_once, again)),
                static_cast<double>(largest_difference(at_once, chunks)), static_cast<double>(largest_difference(at_once, single)),
                static_cast<double>(largest_difference(at_once, alongside)));
    EXPECT_EQ(at_once, again);
    EXPECT_LT(largest_difference(at_once, chunks), 2.0F);
    EXPECT_LT(largest_difference(at_once, single), 2.0F);
    EXPECT_LT(largest_difference(at_once, alongside), 2.0F);
  }
}

}  // namespace
}  // namespace kvtide::engine
