// A deterministic engine without a model, for tests, simulation and trying the server out.
//
// Every cell stores real bytes, derived from the cell before it, its token and its position. Logits are a function of the bytes of *all* cells
// of the sequence, as attention would have it. So equal token chains give equal replies however they were batched, shared, exported and
// imported, and one wrong byte, position or prefix anywhere in a restored sequence changes the reply.
//
// Sampling knows greedy, temperature, top-k, top-p, min-p, seed and logit bias; penalties are ignored. A FakeGrammar dictates its text.
//
// Threading: confined to the loop, as engine.h says.
// Cost: step() is O(length) per item that wants logits, else O(tokens).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/engine.h"

namespace kvtide::engine {

struct FakeEngineConfig {
  Layout layout = Layout::kUnified;
  int32_t seqs = 64;
  int32_t block_tokens = 16;
  int64_t device_tokens = 4096;    // unified only; lanes have seqs x seq_tokens_max
  int32_t seq_tokens_max = 1024;
  int32_t batch_tokens_max = 256;
  int32_t token_bytes = 8;         // bytes stored per cell, at least 8
  int32_t vocab_tokens = 260;      // must hold end_token
  Token end_token = 257;           // <|im_end|> of FakeTextModel
  int32_t end_one_in = 48;         // a reply ends after this many tokens, on average; 0: never by itself
  bool reuse = true;               // false: as a model whose state cannot be cut
};

/// The reply is `text`, then the end token.
struct FakeGrammar final : Grammar {
  std::string text;
};

class FakeEngine final : public Engine {
 public:
  /// REQUIRES: positive sizes; token_bytes >= 8; vocab_tokens > max(256, end_token).
  explicit FakeEngine(const FakeEngineConfig& config);

  const EngineInfo& info() const override { return info_; }
  void share(SeqId from, SeqId to, int32_t tokens) override;
  void dedup(SeqId from, SeqId seq, int32_t begin, int32_t end) override;
  void truncate(SeqId seq, int32_t tokens) override;
  base::Status export_blocks(SeqId seq, int32_t first_block, std::span<const std::span<std::byte>> out) override;
  base::Status import_blocks(SeqId seq, int32_t first_block, std::span<const std::span<const std::byte>> in) override;
  base::Status step(std::span<const StepItem> items) override;
  base::Result<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) override;
  std::span<const float> logits(size_t item) override;
  int64_t cells_used() const override;

  /// The next call of that kind fails with this error and changes nothing.
  void fail_next_step(base::Error with) { step_failure_ = std::move(with); }
  void fail_next_export(base::Error with) { export_failure_ = std::move(with); }
  void fail_next_import(base::Error with) { import_failure_ = std::move(with); }

  int64_t steps() const { return steps_; }                // that succeeded
  int64_t tokens_stepped() const { return tokens_stepped_; }

  /// Checks the holder counts of all cells against the sequences. O(cells).
  void check_invariants() const;

 private:
  using CellId = uint32_t;

  std::vector<CellId>& cells_of(SeqId seq);
  std::byte* bytes_of(CellId cell) { return bytes_.data() + size_t{cell} * static_cast<size_t>(info_.token_bytes); }
  CellId take_cell();
  void release(CellId cell);
  void append(std::vector<CellId>& cells, Token token);
  void fill_logits(const std::vector<CellId>& cells, std::vector<float>& out);

  FakeEngineConfig config_;
  EngineInfo info_;
  std::vector<std::byte> bytes_;               // of all cells
  std::vector<uint32_t> holders_;              // by cell
  std::vector<CellId> free_;                   // a stack
  std::vector<std::vector<CellId>> sequences_;
  std::vector<std::vector<float>> logits_;     // by item of the last step; empty where not wanted
  std::optional<base::Error> step_failure_;
  std::optional<base::Error> export_failure_;
  std::optional<base::Error> import_failure_;
  int64_t steps_ = 0;
  int64_t tokens_stepped_ = 0;
};

std::unique_ptr<FakeEngine> make_fake_engine(const FakeEngineConfig& config = {});

}  // namespace kvtide::engine
