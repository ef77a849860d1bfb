// An engine that knows whose KV lies where: it wraps a real one and keeps, for each sequence, the token chain that its KV was computed of.
//
// Replies alone show little: with two blocks of a prompt in each other's place a small model still answers the same. So every exported
// block is remembered under its bytes, and a block that is imported must be one that ended the very chain that the sequence then holds.
//
// Threading: as the engine, loop thread. sampled() and faults() may be read by others while no request runs.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/api/engine.h"

namespace kvtide::engine {

class ChainEngine final : public Engine {
 public:
  using Chain = std::vector<Token>;

  explicit ChainEngine(std::unique_ptr<Engine> inner) : inner_(std::move(inner)) {}

  /// What the sequence held each time logits were asked for, in order.
  const std::vector<Chain>& sampled() const { return sampled_; }
  /// What was wrong, for people; at most one line a call.
  const std::vector<std::string>& faults() const { return faults_; }

  const EngineInfo& info() const override { return inner_->info(); }
  void share(SeqId from, SeqId to, int32_t tokens) override {
    inner_->share(from, to, tokens);
    const Chain& chain = chains_[from];
    chains_[to] = Chain(chain.begin(), chain.begin() + tokens);
  }
  void dedup(SeqId from, SeqId seq, int32_t begin, int32_t end) override {
    inner_->dedup(from, seq, begin, end);
    if (!std::equal(chains_[from].begin(), chains_[from].begin() + end, chains_[seq].begin())) faults_.push_back("dedup of other tokens");
  }
  void truncate(SeqId seq, int32_t tokens) override {
    inner_->truncate(seq, tokens);
    chains_[seq].resize(std::min(chains_[seq].size(), static_cast<size_t>(tokens)));
  }
  base::Status export_blocks(SeqId seq, int32_t first_block, std::span<const std::span<std::byte>> out) override {
    auto status = inner_->export_blocks(seq, first_block, out);
    const Chain& chain = chains_[seq];
    for (size_t i = 0; status && i < out.size(); ++i) {
      exported_[base::checksum(out[i])] = Chain(chain.begin(), chain.begin() + block_end(first_block, i));
    }
    return status;
  }
  base::Status import_blocks(SeqId seq, int32_t first_block, std::span<const std::span<const std::byte>> in) override {
    auto status = inner_->import_blocks(seq, first_block, in);
    Chain& chain = chains_[seq];
    for (size_t i = 0; status && i < in.size(); ++i) {
      const auto known = exported_.find(base::checksum(in[i]));
      const bool right = known != exported_.end() && static_cast<int32_t>(known->second.size()) == block_end(first_block, i) &&
                         chain.size() + static_cast<size_t>(info().block_tokens) == known->second.size() &&
                         std::equal(chain.begin(), chain.end(), known->second.begin());
      if (!right) {
        faults_.push_back("block " + std::to_string(first_block + static_cast<int32_t>(i)) + " of sequence " + std::to_string(seq.value) +
                          (known == exported_.end() ? " has unknown bytes" : " is that of another prefix"));
        break;
      }
      chain = known->second;
    }
    return status;
  }
  base::Status step(std::span<const StepItem> items) override {
    auto status = inner_->step(items);
    for (const StepItem& item : items) {
      if (!status) break;
      Chain& chain = chains_[item.seq];
      if (static_cast<int32_t>(chain.size()) != item.pos) faults_.push_back("a step at a position that the sequence has not reached");
      chain.insert(chain.end(), item.tokens.begin(), item.tokens.end());
      if (item.want_logits) sampled_.push_back(chain);
    }
    return status;
  }
  base::Result<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) override { return inner_->make_sampler(params); }
  std::span<const float> logits(size_t item) override { return inner_->logits(item); }
  int64_t cells_used() const override { return inner_->cells_used(); }

 private:
  int32_t block_end(int32_t first_block, size_t i) const { return (first_block + static_cast<int32_t>(i) + 1) * info().block_tokens; }

  std::unique_ptr<Engine> inner_;
  std::unordered_map<SeqId, Chain> chains_;
  std::unordered_map<uint64_t, Chain> exported_;  // by checksum of the bytes
  std::vector<Chain> sampled_;
  std::vector<std::string> faults_;
};

}  // namespace kvtide::engine
