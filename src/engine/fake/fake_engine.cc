#include "engine/fake/fake_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;
using base::Status;

constexpr Token kFirstPrintable = 32;
constexpr Token kLastPrintable = 126;
constexpr float kNever = -30.0F;  // what a reply does not contain by itself
constexpr float kChosen = 9.0F;   // above all others, so that temperature 1 mostly follows greedy

uint64_t mix(uint64_t value) { return base::Random(value).next(); }

uint64_t load(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

class FakeSampler final : public Sampler {
 public:
  FakeSampler(FakeEngine& engine, const FakeEngineConfig& config, SamplingParams params)
      : engine_(engine), config_(config), params_(std::move(params)), random_(params_.seed.value_or(0)) {
    const auto* grammar = dynamic_cast<const FakeGrammar*>(params_.grammar.get());
    KV_CHECK(params_.grammar == nullptr || grammar != nullptr);
    grammar_ = grammar;
  }

  Sample sample(size_t item) override {
    const auto raw = engine_.logits(item);
    Sample out;
    out.token = pick(raw);
    accept(out.token, true);
    if (params_.top_logprobs >= 0) add_logprobs(raw, out);
    return out;
  }

  void accept(Token token, bool generated) override {
    if (!generated || grammar_ == nullptr) return;
    // A forced token that is not the dictated one ends the dictation.
    if (said_ < grammar_->text.size() && token == static_cast<uint8_t>(grammar_->text[said_])) {
      ++said_;
    } else {
      grammar_ = nullptr;
    }
  }

 private:
  Token pick(std::span<const float> raw) {
    if (grammar_ != nullptr) {
      return said_ < grammar_->text.size() ? static_cast<Token>(static_cast<uint8_t>(grammar_->text[said_])) : config_.end_token;
    }
    std::vector<float> logits(raw.begin(), raw.end());
    for (const auto& [token, bias] : params_.logit_bias) logits[token] += bias;
    if (params_.ignore_eos) logits[config_.end_token] = -INFINITY;
    if (params_.temperature <= 0) return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    return draw(logits);
  }

  Token draw(const std::vector<float>& logits) {
    std::vector<Token> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](Token a, Token b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
    if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < order.size()) order.resize(static_cast<size_t>(params_.top_k));
    const float best = logits[order.front()];
    std::vector<double> weights;
    double total = 0;
    for (const Token token : order) {
      weights.push_back(std::exp(static_cast<double>((logits[token] - best) / params_.temperature)));
      total += weights.back();
    }
    double kept = 0;
    size_t n = 0;
    while (n < order.size() && (n == 0 || (kept < params_.top_p * total && weights[n] >= params_.min_p))) kept += weights[n++];
    double at = random_.unit() * kept;
    for (size_t i = 0; i < n; ++i) {
      at -= weights[i];
      if (at < 0) return order[i];
    }
    return order[n - 1];
  }

  void add_logprobs(std::span<const float> raw, Sample& out) {
    const float best = *std::max_element(raw.begin(), raw.end());
    double sum = 0;
    for (const float logit : raw) sum += std::exp(static_cast<double>(logit - best));
    const float log_sum = best + static_cast<float>(std::log(sum));
    out.logprob = raw[out.token] - log_sum;
    std::vector<Token> order(raw.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](Token a, Token b) { return raw[a] > raw[b] || (raw[a] == raw[b] && a < b); });
    for (size_t i = 0; i < std::min<size_t>(order.size(), static_cast<size_t>(params_.top_logprobs)); ++i) {
      out.top.push_back({order[i], raw[order[i]] - log_sum});
    }
  }

  FakeEngine& engine_;
  const FakeEngineConfig& config_;
  SamplingParams params_;
  base::Random random_;
  const FakeGrammar* grammar_ = nullptr;  // owned by params_; null when there is none or it was left
  size_t said_ = 0;
};

}  // namespace

FakeEngine::FakeEngine(const FakeEngineConfig& config) : config_(config) {
  KV_CHECK(config.seqs > 0 && config.block_tokens > 0 && config.seq_tokens_max > 0 && config.batch_tokens_max > 0);
  KV_CHECK(config.token_bytes >= 8 && config.vocab_tokens > 256 && config.end_token >= 0 && config.end_token < config.vocab_tokens);
  info_.engine = "fake";
  info_.engine_version = "fake 1";
  info_.model_name = "fake";
  info_.model_description = "deterministic bytes, no model";
  base::Sha256 hash;
  hash.update("kvtide fake 1\n");
  for (const int32_t value : {config.token_bytes, config.vocab_tokens, config.end_one_in}) hash.update(std::to_string(value)).update(",");
  info_.fingerprint = hash.digest();
  info_.layout = config.layout;
  info_.seqs = config.seqs;
  info_.block_tokens = config.block_tokens;
  info_.device_tokens = config.layout == Layout::kLanes ? int64_t{config.seqs} * config.seq_tokens_max : config.device_tokens;
  info_.seq_tokens_max = config.seq_tokens_max;
  info_.context_train_tokens = config.seq_tokens_max;
  info_.batch_tokens_max = config.batch_tokens_max;
  info_.token_bytes = config.token_bytes;
  info_.block_bytes = config.reuse ? int64_t{config.block_tokens} * config.token_bytes : 0;
  info_.vocab_tokens = config.vocab_tokens;
  info_.reuse = config.reuse;
  if (!config.reuse) info_.reuse_off_reason = "the fake engine was told so";

  const auto cells = static_cast<size_t>(info_.device_tokens);
  bytes_.resize(cells * static_cast<size_t>(config.token_bytes));
  holders_.assign(cells, 0);
  free_.resize(cells);
  for (size_t i = 0; i < cells; ++i) free_[i] = static_cast<CellId>(cells - 1 - i);
  sequences_.resize(static_cast<size_t>(config.seqs));
}

std::vector<FakeEngine::CellId>& FakeEngine::cells_of(SeqId seq) {
  KV_CHECK(seq.value < sequences_.size());
  return sequences_[seq.value];
}

FakeEngine::CellId FakeEngine::take_cell() {
  KV_CHECK(!free_.empty());
  const CellId cell = free_.back();
  free_.pop_back();
  holders_[cell] = 1;
  return cell;
}

void FakeEngine::release(CellId cell) {
  KV_CHECK(holders_[cell] > 0);
  if (--holders_[cell] > 0) return;
  std::memset(bytes_of(cell), 0xEE, static_cast<size_t>(info_.token_bytes));  // a use after release shows
  free_.push_back(cell);
}

void FakeEngine::share(SeqId from, SeqId to, int32_t tokens) {
  KV_CHECK(info_.layout == Layout::kUnified && info_.reuse);
  const auto& source = cells_of(from);
  auto& target = cells_of(to);
  KV_CHECK(from != to && target.empty() && tokens > 0 && static_cast<size_t>(tokens) <= source.size());
  target.assign(source.begin(), source.begin() + tokens);
  for (const CellId cell : target) ++holders_[cell];
}

void FakeEngine::dedup(SeqId from, SeqId seq, int32_t begin, int32_t end) {
  KV_CHECK(info_.layout == Layout::kUnified && info_.reuse);
  const auto& source = cells_of(from);
  auto& target = cells_of(seq);
  KV_CHECK(from != seq && 0 <= begin && begin <= end);
  KV_CHECK(static_cast<size_t>(end) <= source.size() && static_cast<size_t>(end) <= target.size());
  for (int32_t i = begin; i < end; ++i) {
    ++holders_[source[i]];
    release(target[i]);
    target[i] = source[i];
  }
}

void FakeEngine::truncate(SeqId seq, int32_t tokens) {
  auto& cells = cells_of(seq);
  KV_CHECK(tokens >= 0 && static_cast<size_t>(tokens) <= cells.size());
  KV_CHECK(tokens == 0 || info_.reuse);
  while (cells.size() > static_cast<size_t>(tokens)) {
    release(cells.back());
    cells.pop_back();
  }
}

Status FakeEngine::export_blocks(SeqId seq, int32_t first_block, std::span<const std::span<std::byte>> out) {
  if (!info_.reuse) return error(Code::kUnsupported, info_.reuse_off_reason);
  const auto& cells = cells_of(seq);
  const auto block_tokens = static_cast<size_t>(info_.block_tokens);
  KV_CHECK(first_block >= 0 && (static_cast<size_t>(first_block) + out.size()) * block_tokens <= cells.size());
  for (const auto& block : out) KV_CHECK(block.size() == static_cast<size_t>(info_.block_bytes));
  if (export_failure_) return tl::make_unexpected(*std::exchange(export_failure_, std::nullopt));
  const auto token_bytes = static_cast<size_t>(info_.token_bytes);
  for (size_t b = 0; b < out.size(); ++b) {
    for (size_t i = 0; i < block_tokens; ++i) {
      std::memcpy(out[b].data() + i * token_bytes, bytes_of(cells[(static_cast<size_t>(first_block) + b) * block_tokens + i]), token_bytes);
    }
  }
  return {};
}

Status FakeEngine::import_blocks(SeqId seq, int32_t first_block, std::span<const std::span<const std::byte>> in) {
  if (!info_.reuse) return error(Code::kUnsupported, info_.reuse_off_reason);
  auto& cells = cells_of(seq);
  const auto block_tokens = static_cast<size_t>(info_.block_tokens);
  KV_CHECK(first_block >= 0 && static_cast<size_t>(first_block) * block_tokens == cells.size());
  for (const auto& block : in) {
    if (block.size() != static_cast<size_t>(info_.block_bytes)) return error(Code::kCorrupt, "a block is not of block_bytes");
  }
  if (import_failure_) return tl::make_unexpected(*std::exchange(import_failure_, std::nullopt));
  const size_t more = in.size() * block_tokens;
  if (cells.size() + more > static_cast<size_t>(info_.seq_tokens_max)) {
    return error(Code::kResourceExhausted, "the sequence is at its longest");
  }
  if (more > free_.size()) return error(Code::kResourceExhausted, "no free KV cells for these blocks");
  const auto token_bytes = static_cast<size_t>(info_.token_bytes);
  for (const auto& block : in) {
    for (size_t i = 0; i < block_tokens; ++i) {
      cells.push_back(take_cell());
      std::memcpy(bytes_of(cells.back()), block.data() + i * token_bytes, token_bytes);
    }
  }
  return {};
}

void FakeEngine::append(std::vector<CellId>& cells, Token token) {
  const uint64_t before = cells.empty() ? 0x6b76746964650001ULL : load(bytes_of(cells.back()));
  uint64_t word = mix(before ^ mix(static_cast<uint64_t>(token) << 32 | cells.size()));
  cells.push_back(take_cell());
  std::byte* to = bytes_of(cells.back());
  for (size_t at = 0; at < static_cast<size_t>(info_.token_bytes); at += sizeof(word), word = mix(word)) {
    std::memcpy(to + at, &word, std::min(sizeof(word), static_cast<size_t>(info_.token_bytes) - at));
  }
}

void FakeEngine::fill_logits(const std::vector<CellId>& cells, std::vector<float>& out) {
  uint64_t seen = 0;
  for (const CellId cell : cells) {
    const std::byte* bytes = bytes_of(cell);
    for (size_t at = 0; at < static_cast<size_t>(info_.token_bytes); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min(sizeof(word), static_cast<size_t>(info_.token_bytes) - at));
      seen = mix(seen ^ word);
    }
  }
  out.assign(static_cast<size_t>(info_.vocab_tokens), kNever);
  for (Token token = kFirstPrintable; token <= kLastPrintable; ++token) {
    out[token] = static_cast<float>(mix(seen ^ static_cast<uint64_t>(token)) % 4096) / 1024.0F;
  }
  out[config_.end_token] = 0;
  const bool ends = config_.end_one_in > 0 && mix(seen) % static_cast<uint64_t>(config_.end_one_in) == 0;
  out[ends ? config_.end_token : kFirstPrintable + static_cast<Token>(seen % (kLastPrintable - kFirstPrintable + 1))] = kChosen;
}

Status FakeEngine::step(std::span<const StepItem> items) {
  size_t tokens = 0;
  std::vector<uint8_t> stepped(sequences_.size(), 0);
  for (const StepItem& item : items) {
    KV_CHECK(!item.tokens.empty() && static_cast<size_t>(item.pos) == cells_of(item.seq).size());
    KV_CHECK(stepped[item.seq.value]++ == 0);
    for (const Token token : item.tokens) KV_CHECK(token >= 0 && token < info_.vocab_tokens);
    tokens += item.tokens.size();
  }
  KV_CHECK(tokens <= static_cast<size_t>(info_.batch_tokens_max));
  logits_.clear();
  if (step_failure_) return tl::make_unexpected(*std::exchange(step_failure_, std::nullopt));
  for (const StepItem& item : items) {
    if (static_cast<size_t>(item.pos) + item.tokens.size() > static_cast<size_t>(info_.seq_tokens_max)) {
      return error(Code::kResourceExhausted, "the sequence is at its longest");
    }
  }
  if (tokens > free_.size()) return error(Code::kResourceExhausted, "no free KV cells for this step");
  logits_.resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    auto& cells = cells_of(items[i].seq);
    for (const Token token : items[i].tokens) append(cells, token);
    if (items[i].want_logits) fill_logits(cells, logits_[i]);
  }
  ++steps_;
  tokens_stepped_ += static_cast<int64_t>(tokens);
  return {};
}

Result<std::unique_ptr<Sampler>> FakeEngine::make_sampler(const SamplingParams& params) {
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= info_.vocab_tokens) {
      return error(Code::kInvalidArgument, "logit_bias names a token that the model does not have");
    }
  }
  return std::make_unique<FakeSampler>(*this, config_, params);
}

std::span<const float> FakeEngine::logits(size_t item) {
  KV_CHECK(item < logits_.size() && !logits_[item].empty());
  return logits_[item];
}

int64_t FakeEngine::cells_used() const { return static_cast<int64_t>(holders_.size() - free_.size()); }

void FakeEngine::check_invariants() const {
  std::vector<uint32_t> counted(holders_.size(), 0);
  for (const auto& cells : sequences_) {
    for (const CellId cell : cells) ++counted[cell];
  }
  KV_CHECK(counted == holders_);
  for (const CellId cell : free_) KV_CHECK(holders_[cell] == 0);
  KV_CHECK(static_cast<size_t>(std::count(holders_.begin(), holders_.end(), 0U)) == free_.size());
}

std::unique_ptr<FakeEngine> make_fake_engine(const FakeEngineConfig& config) { return std::make_unique<FakeEngine>(config); }

}  // namespace kvtide::engine
