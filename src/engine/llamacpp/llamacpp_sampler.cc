#include "engine/llamacpp/llamacpp_sampler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>

#include "base/check.h"
#include "engine/llamacpp/llamacpp_log.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;
using base::Status;

class LlamaCppSampler final : public Sampler {
 public:
  LlamaCppSampler(LogitRows& rows, const LlamaModel& model, common_params_sampling params, int32_t top_logprobs, bool plain_greedy)
      : rows_(rows), model_(model), params_(std::move(params)), top_logprobs_(top_logprobs), plain_greedy_(plain_greedy) {}

  /// Compiles the chain. Throws what llama.cpp throws.
  void init() {
    if (!plain_greedy_) sampler_.reset(common_sampler_init(model_.model, params_));
  }

  Sample sample(size_t item) override {
    const int32_t row = rows_.row(item);
    const int32_t vocab = llama_vocab_n_tokens(model_.vocab());
    const float* logits = llama_get_logits_ith(rows_.context(), row);
    KV_CHECK(logits != nullptr);
    Sample out;
    if (plain_greedy_) {
      out.token = static_cast<Token>(std::max_element(logits, logits + vocab) - logits);
    } else {
      out.token = pick(row, logits, vocab);
      accept(out.token, true);
    }
    if (top_logprobs_ >= 0) add_logprobs(std::span(logits, static_cast<size_t>(vocab)), out);
    return out;
  }

  void accept(Token token, bool generated) override {
    if (plain_greedy_) return;
    if (generated && !params_.grammar.empty()) generated_.push_back(token);
    try {
      common_sampler_accept(sampler_.get(), token, generated);
    } catch (const std::exception&) {
      drop_grammar();
    }
  }

 private:
  Token pick(int32_t row, const float* logits, int32_t vocab) {
    try {
      return common_sampler_sample(sampler_.get(), rows_.context(), row);
    } catch (const std::exception&) {  // a grammar that can go nowhere: the reply goes on as free text
      drop_grammar();
      return static_cast<Token>(std::max_element(logits, logits + vocab) - logits);
    }
  }

  /// A forced token that the grammar does not know ends the grammar's say. The sampler is rebuilt without it, penalties kept.
  void drop_grammar() {
    params_.grammar = {};
    params_.grammar_triggers.clear();
    params_.grammar_lazy = false;
    try {
      sampler_.reset(common_sampler_init(model_.model, params_));
      for (const Token token : generated_) common_sampler_accept(sampler_.get(), token, true);
    } catch (const std::exception&) {
      plain_greedy_ = true;  // the same parameters were accepted at the start; if not now, greedy still answers
    }
    generated_.clear();
  }

  void add_logprobs(std::span<const float> logits, Sample& out) {
    const float best = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit - best));
    const auto log_sum = static_cast<float>(std::log(sum)) + best;
    out.logprob = logits[out.token] - log_sum;
    const auto n = std::min<size_t>(static_cast<size_t>(top_logprobs_), logits.size());
    if (n == 0) return;
    order_.resize(logits.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n), order_.end(), [&](Token a, Token b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    for (size_t i = 0; i < n; ++i) out.top.push_back({order_[i], logits[order_[i]] - log_sum});
  }

  LogitRows& rows_;
  const LlamaModel& model_;
  common_params_sampling params_;
  int32_t top_logprobs_;
  bool plain_greedy_;  // nothing changes the logits: the best raw logit is the answer, no sampler needed
  common_sampler_ptr sampler_;
  std::vector<Token> generated_;  // kept while a grammar is active, to rebuild without it
  std::vector<Token> order_;
};

Status check(const SamplingParams& p, int32_t vocab) {
  const auto finite = [](float v) { return std::isfinite(v); };
  if (!finite(p.temperature)) return error(Code::kInvalidArgument, "temperature must be a finite number");
  if (!finite(p.top_p) || p.top_p < 0 || p.top_p > 1) return error(Code::kInvalidArgument, "top_p must be within 0 and 1");
  if (!finite(p.min_p) || p.min_p < 0 || p.min_p > 1) return error(Code::kInvalidArgument, "min_p must be within 0 and 1");
  if (!finite(p.repeat_penalty) || p.repeat_penalty <= 0 || !finite(1.0F / p.repeat_penalty)) {
    return error(Code::kInvalidArgument, "repeat_penalty must be greater than 0");
  }
  if (!finite(p.frequency_penalty)) return error(Code::kInvalidArgument, "frequency_penalty must be a finite number");
  if (!finite(p.presence_penalty)) return error(Code::kInvalidArgument, "presence_penalty must be a finite number");
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab) return error(Code::kInvalidArgument, "logit_bias names a token that the model does not have");
    if (std::isnan(bias)) return error(Code::kInvalidArgument, "logit_bias must be a number");
  }
  return {};
}

void take_grammar(const LlamaCppGrammar& grammar, common_params_sampling& out) {
  out.grammar = grammar.grammar;
  out.grammar_lazy = grammar.lazy;
  out.grammar_triggers = grammar.triggers;
  out.preserved_tokens = grammar.preserved_tokens;
  out.generation_prompt = grammar.generation_prompt;
  out.reasoning_budget_start = grammar.thinking_start;
  out.reasoning_budget_end = grammar.thinking_ends;
  if (!grammar.thinking_ends.empty()) out.reasoning_budget_forced = grammar.thinking_ends.front();
}

common_params_sampling translate(const SamplingParams& p, const llama_vocab* vocab) {
  common_params_sampling out;
  out.no_perf = true;
  out.seed = p.seed.value_or(LLAMA_DEFAULT_SEED);
  out.temp = p.temperature;
  out.top_p = p.top_p;
  out.top_k = std::max(p.top_k, 0);
  out.min_p = p.min_p;
  out.penalty_repeat = p.repeat_penalty;
  out.penalty_last_n = std::clamp(p.repeat_last_n, 0, 1 << 20);
  out.penalty_freq = p.frequency_penalty;
  out.penalty_present = p.presence_penalty;
  for (const auto& [token, bias] : p.logit_bias) out.logit_bias.push_back({token, bias});
  if (p.ignore_eos) {
    for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
      if (llama_vocab_is_eog(vocab, token)) out.logit_bias.push_back({token, -INFINITY});
    }
  }
  if (p.temperature <= 0) {
    // Only what may move the maximum: cutting and sorting could break ties another way than the raw logits do.
    out.samplers = {COMMON_SAMPLER_TYPE_PENALTIES, COMMON_SAMPLER_TYPE_TEMPERATURE};
  }
  if (p.grammar) {
    const auto* grammar = dynamic_cast<const LlamaCppGrammar*>(p.grammar.get());
    KV_CHECK(grammar != nullptr);
    take_grammar(*grammar, out);
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Sampler>> make_llamacpp_sampler(LogitRows& rows, const LlamaModel& model, const SamplingParams& params) {
  const llama_vocab* vocab = model.vocab();
  if (auto ok = check(params, llama_vocab_n_tokens(vocab)); !ok) return tl::make_unexpected(ok.error());
  int32_t suppressed = 0;
  llama_vocab_get_suppress_tokens(vocab, &suppressed);
  const bool penalties = params.repeat_last_n != 0 &&
                         (params.repeat_penalty != 1.0F || params.frequency_penalty != 0 || params.presence_penalty != 0);
  const bool plain_greedy =
      params.temperature <= 0 && !penalties && params.logit_bias.empty() && !params.ignore_eos && !params.grammar && suppressed == 0;
  const LogCapture quiet(true);
  auto sampler = std::make_unique<LlamaCppSampler>(rows, model, translate(params, vocab), params.top_logprobs, plain_greedy);
  try {
    sampler->init();
  } catch (const std::exception& failure) {
    return error(Code::kInvalidArgument, std::string("grammar: ") + failure.what());
  }
  return sampler;
}

}  // namespace kvtide::engine
