// The engine seam over one llama_context, by public API only.
//
// Unified layout: the caller's sequences and one private scratch sequence share one pool of cells. Blocks travel through the scratch:
// export copies a range's cell *references* to it and serialises that; import restores into it, moves the references, empties it.
// Lanes: every sequence is a stream of its own. There is no cheaper way in the public API than serialising the whole lane, and to restore
// a lane means to replace it, so import builds the lane's whole new state and puts the old one back when that fails.
//
// Threading: confined to the loop, except info().
// Cost: export and import copy each byte twice (llama.cpp to buffer to block), as llama.cpp serialises into one run of bytes and blocks lie
// apart; the first export of a lane since it changed reads the whole lane. cells_used() passes over all cells.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/api/engine.h"
#include "engine/llamacpp/kv_codec.h"
#include "engine/llamacpp/llamacpp_model.h"
#include "engine/llamacpp/llamacpp_sampler.h"

namespace kvtide::engine {

struct ContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ContextPtr = std::unique_ptr<llama_context, ContextDeleter>;

/// A byte buffer that grows and is never cleared. Its memory is touched only as far as it is used.
class GrowingBuffer {
 public:
  std::span<std::byte> take(size_t bytes);

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
};

/// What the self-check found out about a context.
struct KvCheck {
  std::optional<KvGeometry> geometry;  // none: no reuse
  std::string why_not;
};

/// Decodes three tokens, exports, cuts, assembles, imports into another sequence and compares. Leaves the context empty.
/// `to` is the sequence to import into.
/// Errors: kInternal when the model cannot even decode.
base::Result<KvCheck> check_kv(const LlamaModel& model, llama_context* context, Layout layout, int32_t to);

/// Why this model's state cannot be cut by token; empty when nothing speaks against it.
std::string reuse_obstacle(const LlamaModel& model);

class LlamaCppEngine final : public Engine, private LogitRows {
 public:
  /// Errors: as load().
  static base::Result<std::unique_ptr<Engine>> create(std::shared_ptr<const LlamaModel> model, const LlamaCppOptions& options);

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

 private:
  LlamaCppEngine(std::shared_ptr<const LlamaModel> model, ContextPtr context, EngineInfo info, std::optional<KvCodec> codec);

  llama_context* context() override { return context_.get(); }
  int32_t row(size_t item) const override;

  int32_t& length(SeqId seq);
  void changes(SeqId seq);  // call before its cells change: what was read of them is out of date
  llama_memory_t memory() const { return llama_get_memory(context_.get()); }
  llama_seq_id scratch() const { return info_.seqs; }

  void fill_batch(std::span<const StepItem> items);
  int32_t decode();

  base::Result<KvRun> read_run(llama_seq_id seq, int32_t begin, int32_t end, GrowingBuffer& buffer);
  base::Status export_unified(SeqId seq, int32_t begin, std::span<const std::span<std::byte>> out);
  base::Status import_unified(SeqId seq, int32_t begin, std::span<const std::span<const std::byte>> in);
  base::Status export_lane(SeqId seq, int32_t begin, std::span<const std::span<std::byte>> out);
  base::Status import_lane(SeqId seq, int32_t begin, std::span<const std::span<const std::byte>> in);

  std::shared_ptr<const LlamaModel> model_;  // shared with the text model
  ContextPtr context_;
  EngineInfo info_;
  std::optional<KvCodec> codec_;             // none: reuse off
  std::vector<int32_t> lengths_;             // by sequence

  // The batch, reused; sized for batch_tokens_max once.
  llama_batch batch_{};
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<int32_t> owner_counts_;
  std::vector<llama_seq_id> owners_;
  std::vector<llama_seq_id*> owner_rows_;
  std::vector<int8_t> outputs_;
  std::vector<size_t> order_;                // items as they lie in the batch
  std::vector<int32_t> rows_;                // by item: batch row with logits, or -1

  GrowingBuffer blob_;
  std::optional<KvRun> lane_run_;            // lanes: blob_ holds all of lane_, as it is now
  SeqId lane_{};
  GrowingBuffer old_lane_;
};

}  // namespace kvtide::engine
