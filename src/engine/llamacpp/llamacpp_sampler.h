// One reply's sampling through llama.cpp's common sampler, with log probabilities over the raw logits.
//
// Threading: confined to the loop, as the engine it samples from.
// Cost: O(vocabulary) per token; greedy without penalties, bias or grammar is one pass.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/llamacpp/llamacpp_model.h"
#include "sampling.h"

namespace kvtide::engine {

/// What the sampler must know of a grammar; made by the text model, taken over into common_params_sampling.
struct LlamaCppGrammar final : Grammar {
  common_grammar grammar;
  bool lazy = false;
  std::vector<common_grammar_trigger> triggers;
  std::set<llama_token> preserved_tokens;
  std::string generation_prompt;
  std::vector<llama_token> thinking_start;             // a lazy grammar sleeps inside a thinking block
  std::vector<std::vector<llama_token>> thinking_ends;
};

/// Where an engine keeps the logits of the last step.
class LogitRows {
 public:
  virtual ~LogitRows() = default;
  virtual llama_context* context() = 0;
  /// The batch row of item `item`, whose logits were asked for.
  virtual int32_t row(size_t item) const = 0;
};

/// Errors: kInvalidArgument with the name of the parameter. `rows` and `model` must outlive the sampler.
base::Result<std::unique_ptr<Sampler>> make_llamacpp_sampler(LogitRows& rows, const LlamaModel& model, const SamplingParams& params);

}  // namespace kvtide::engine
