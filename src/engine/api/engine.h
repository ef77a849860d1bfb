// The engine seam: what kvtide needs of an inference engine.
//
// An engine owns a fixed number of *sequences*. A sequence holds the KV of positions [0, n) of one token chain. Every call is about whole
// prefixes or runs of blocks of a sequence; which tokens those are is the caller's knowledge, not the engine's.
//
// Not responsible for: what is worth keeping, who owns it, whether bytes are right. The caller checks capacity before it steps, and
// verifies checksums around import and export.
//
// Two layouts sit behind the seam. *Unified*: all sequences draw from one pool of cells and share() costs nothing. *Lanes*: each
// sequence has its own `seq_tokens_max` cells and share() is unsupported; moving a prefix between lanes is export + import.
//
// Threading: confined to the loop thread, except info(), which is constant after construction and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/status.h"

namespace kvtide::engine {

using Token = int32_t;
using base::SeqId;

enum class Layout { kUnified, kLanes };

struct EngineInfo {
  std::string engine;                // "llamacpp", "fake"
  std::string engine_version;        // of the library below, for people
  std::string model_name;            // general.name of the model, or its file name
  std::string model_description;     // architecture, size and type, for people
  base::Digest fingerprint{};        // of weights, KV geometry and KV dtype: KV bytes are interchangeable only where it is equal
  Layout layout = Layout::kUnified;
  int32_t seqs = 0;                  // usable sequence ids are [0, seqs)
  int32_t block_tokens = 64;         // tokens in a block
  int64_t device_tokens = 0;         // KV cells in all
  int32_t seq_tokens_max = 0;        // the longest one sequence can grow
  int32_t context_train_tokens = 0;  // what the model was trained for
  int32_t batch_tokens_max = 0;      // tokens in one step, over all items
  int64_t block_bytes = 0;           // bytes of one exported block; 0 when reuse is off
  int64_t token_bytes = 0;           // device bytes of one cell
  int32_t vocab_tokens = 0;
  bool reuse = true;                 // false: sequences cannot be cut, shared, exported (sliding window, recurrent state)
  std::string reuse_off_reason;      // for people, when reuse is false
};

/// Work of one sequence in a step: `tokens` go to positions [pos, pos + tokens.size()).
struct StepItem {
  SeqId seq;
  int32_t pos = 0;                 // must be the sequence's present length
  std::span<const Token> tokens;   // at least one
  bool want_logits = false;        // of the last token, for a Sampler
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;
};

struct Sample {
  Token token = 0;
  float logprob = 0;               // filled when top_logprobs was asked for
  std::vector<TokenLogprob> top;   // best first, at most SamplingParams::top_logprobs
};

/// A grammar compiled by the text model for this engine; opaque to everybody between.
class Grammar {
 public:
  virtual ~Grammar() = default;
};

struct SamplingParams {
  float temperature = 0.8F;        // <= 0: greedy
  float top_p = 0.95F;             // 1: off
  int32_t top_k = 40;              // <= 0: off
  float min_p = 0.05F;             // 0: off
  float repeat_penalty = 1.0F;     // 1: off
  int32_t repeat_last_n = 64;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::optional<uint32_t> seed;    // none: random
  int32_t top_logprobs = -1;       // -1: no logprobs; 0: of the chosen token; n: and the n best
  std::vector<std::pair<Token, float>> logit_bias;
  bool ignore_eos = false;
  std::shared_ptr<const Grammar> grammar;  // null: free text. Shared: a request's choices (n) use one
};

/// The sampling state of one reply. Must not outlive its engine.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Picks a token from the logits of item `item` of the last step(), and accepts it. REQUIRES: that item had want_logits.
  virtual Sample sample(size_t item) = 0;
  /// Takes a token decided elsewhere: prompt tokens (for penalties; `generated` false) or a forced reply.
  virtual void accept(Token token, bool generated) = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;

  /// `to` then holds the same first `tokens` positions as `from`, with no copy. REQUIRES: unified layout, `to` empty, 0 < tokens <= length(from).
  virtual void share(SeqId from, SeqId to, int32_t tokens) = 0;

  /// Replaces positions [begin, end) of `seq` by those of `from`, freeing cells that nobody else holds. Equal tokens on both sides
  /// are the caller's promise. REQUIRES: unified layout, both hold the range.
  virtual void dedup(SeqId from, SeqId seq, int32_t begin, int32_t end) = 0;

  /// Drops positions [tokens, end) of `seq`; 0 empties it. REQUIRES: tokens == 0 or info().reuse.
  virtual void truncate(SeqId seq, int32_t tokens) = 0;

  /// Copies blocks [first_block, first_block + out.size()) of `seq`, each into one buffer of block_bytes.
  /// Errors: kUnsupported (reuse off), kInternal. Cost: bytes copied; in lanes also a pass over the whole sequence.
  virtual base::Status export_blocks(SeqId seq, int32_t first_block, std::span<const std::span<std::byte>> out) = 0;

  /// Appends blocks to `seq`, which must hold exactly [0, first_block * block_tokens). On an error the sequence holds what it held.
  /// Errors: kUnsupported, kResourceExhausted (no cells), kCorrupt (the bytes do not fit this geometry), kInternal.
  virtual base::Status import_blocks(SeqId seq, int32_t first_block, std::span<const std::span<const std::byte>> in) = 0;

  /// Runs one forward pass. On an error no item has advanced: every sequence holds what it held before.
  /// Errors: kResourceExhausted (no cells), kInternal. REQUIRES: the items' tokens together fit batch_tokens_max; a sequence appears once.
  virtual base::Status step(std::span<const StepItem> items) = 0;

  /// Errors: kInvalidArgument (grammar or bias that this model cannot use).
  virtual base::Result<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) = 0;

  /// Raw logits of item `item` of the last step, info().vocab_tokens long; valid until the next step. For tests that compare outputs.
  virtual std::span<const float> logits(size_t item) = 0;

  /// Cells in use, as the engine counts them. For leak checks.
  virtual int64_t cells_used() const = 0;
};

}  // namespace kvtide::engine
