#include "engine/llamacpp/llamacpp_engine.h"

#include <algorithm>
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

// kv_codec knows this form of the serialised state, and only this one. A new version needs a look at llama-kv-cache.cpp, then this number.
static_assert(LLAMA_STATE_SEQ_VERSION == 3);

// Blocks that pass through the scratch sequence at once: enough that llama.cpp's passes over all cells weigh little, few enough that the
// buffer stays in the last-level cache (engine_bench blocks).
constexpr size_t kBlocksAtOnce = 8;

uint8_t* raw(std::span<std::byte> bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }

}  // namespace

std::span<std::byte> GrowingBuffer::take(size_t bytes) {
  if (bytes > size_) {
    size_ = std::max(bytes, size_ + size_ / 2);
    data_ = std::make_unique_for_overwrite<std::byte[]>(size_);
  }
  return {data_.get(), bytes};
}

LlamaCppEngine::LlamaCppEngine(std::shared_ptr<const LlamaModel> model, ContextPtr context, EngineInfo info, std::optional<KvCodec> codec)
    : model_(std::move(model)), context_(std::move(context)), info_(std::move(info)), codec_(std::move(codec)) {
  const auto most = static_cast<size_t>(info_.batch_tokens_max);
  lengths_.resize(static_cast<size_t>(info_.seqs));
  tokens_.resize(most);
  positions_.resize(most);
  owner_counts_.assign(most, 1);
  owners_.resize(most);
  owner_rows_.resize(most);
  for (size_t i = 0; i < most; ++i) owner_rows_[i] = &owners_[i];
  outputs_.resize(most);
  batch_ = {.n_tokens = 0,
            .token = tokens_.data(),
            .embd = nullptr,
            .pos = positions_.data(),
            .n_seq_id = owner_counts_.data(),
            .seq_id = owner_rows_.data(),
            .logits = outputs_.data()};
}

int32_t& LlamaCppEngine::length(SeqId seq) {
  KV_CHECK(seq.value < lengths_.size());
  return lengths_[seq.value];
}

void LlamaCppEngine::changes(SeqId seq) {
  if (lane_run_ && lane_ == seq) lane_run_.reset();
}

void LlamaCppEngine::share(SeqId from, SeqId to, int32_t tokens) {
  KV_CHECK(info_.layout == Layout::kUnified && info_.reuse);
  KV_CHECK(from != to && length(to) == 0 && 0 < tokens && tokens <= length(from));
  llama_memory_seq_cp(memory(), static_cast<llama_seq_id>(from.value), static_cast<llama_seq_id>(to.value), 0, tokens);
  length(to) = tokens;
}

void LlamaCppEngine::dedup(SeqId from, SeqId seq, int32_t begin, int32_t end) {
  KV_CHECK(info_.layout == Layout::kUnified && info_.reuse);
  KV_CHECK(from != seq && 0 <= begin && begin <= end && end <= length(from) && end <= length(seq));
  if (begin == end) return;
  llama_memory_seq_rm(memory(), static_cast<llama_seq_id>(seq.value), begin, end);
  llama_memory_seq_cp(memory(), static_cast<llama_seq_id>(from.value), static_cast<llama_seq_id>(seq.value), begin, end);
}

void LlamaCppEngine::truncate(SeqId seq, int32_t tokens) {
  KV_CHECK(0 <= tokens && tokens <= length(seq));
  KV_CHECK(tokens == 0 || info_.reuse);
  changes(seq);
  llama_memory_seq_rm(memory(), static_cast<llama_seq_id>(seq.value), tokens == 0 ? -1 : tokens, -1);
  length(seq) = tokens;
}

// ---- step ------------------------------------------------------------------------------------------------------------------------

void LlamaCppEngine::fill_batch(std::span<const StepItem> items) {
  order_.resize(items.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (info_.layout == Layout::kLanes) {
    // llama.cpp computes streams together only when their numbers follow one another in the batch.
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return items[a].seq < items[b].seq; });
  }
  rows_.assign(items.size(), -1);
  size_t n = 0;
  for (const size_t i : order_) {
    const StepItem& item = items[i];
    KV_CHECK(!item.tokens.empty() && item.pos == length(item.seq));
    KV_CHECK(n + item.tokens.size() <= tokens_.size());
    for (size_t t = 0; t < item.tokens.size(); ++t, ++n) {
      tokens_[n] = item.tokens[t];
      positions_[n] = item.pos + static_cast<int32_t>(t);
      owners_[n] = static_cast<llama_seq_id>(item.seq.value);
      outputs_[n] = 0;
    }
    if (item.want_logits) {
      outputs_[n - 1] = 1;
      rows_[i] = static_cast<int32_t>(n - 1);
    }
  }
  batch_.n_tokens = static_cast<int32_t>(n);
}

int32_t LlamaCppEngine::decode() {
  try {
    return llama_decode(context_.get(), batch_);
  } catch (const std::exception&) {
    return -4;  // as its own fatal errors
  }
}

Status LlamaCppEngine::step(std::span<const StepItem> items) {
  if (items.empty()) return {};
  fill_batch(items);
  for (const StepItem& item : items) {
    if (item.pos + static_cast<int64_t>(item.tokens.size()) > info_.seq_tokens_max) {
      rows_.assign(items.size(), -1);
      return error(Code::kResourceExhausted, "the sequence is at its longest");
    }
  }
  for (const StepItem& item : items) changes(item.seq);
  const LogCapture capture(true);
  const int32_t answer = decode();
  if (answer == 0) {
    for (const StepItem& item : items) length(item.seq) += static_cast<int32_t>(item.tokens.size());
    return {};
  }
  rows_.assign(items.size(), -1);
  for (const StepItem& item : items) {  // passes of this step that did run have left their cells
    llama_memory_seq_rm(memory(), static_cast<llama_seq_id>(item.seq.value), item.pos == 0 ? -1 : item.pos, -1);
  }
  if (answer == 1) return error(Code::kResourceExhausted, "no free KV cells for this step");
  return error(Code::kInternal, "llama_decode answered " + std::to_string(answer) + ": " + capture.last_error("no reason given"));
}

int32_t LlamaCppEngine::row(size_t item) const {
  KV_CHECK(item < rows_.size() && rows_[item] >= 0);
  return rows_[item];
}

std::span<const float> LlamaCppEngine::logits(size_t item) {
  const float* values = llama_get_logits_ith(context_.get(), row(item));
  KV_CHECK(values != nullptr);
  return {values, static_cast<size_t>(info_.vocab_tokens)};
}

Result<std::unique_ptr<Sampler>> LlamaCppEngine::make_sampler(const SamplingParams& params) {
  return make_llamacpp_sampler(*this, *model_, params);
}

int64_t LlamaCppEngine::cells_used() const {
  int64_t held = 0;  // cells, each once per holder
  for (llama_seq_id seq = 0; seq <= info_.seqs; ++seq) {
    if (seq == info_.seqs && (info_.layout != Layout::kUnified || !info_.reuse)) break;
    held += llama_memory_seq_pos_max(memory(), seq) + 1;
  }
  if (info_.layout == Layout::kLanes || !codec_) return held;
  // Shared cells count once. The size of the whole state is the one place where llama.cpp tells how many cells it uses.
  const auto bytes = static_cast<int64_t>(llama_state_seq_get_size(context_.get(), -1));
  const auto headers = static_cast<int64_t>(codec_->blob_bytes(1)) - static_cast<int64_t>(codec_->blob_bytes(2) - codec_->blob_bytes(1));
  const int64_t per_cell = info_.token_bytes + 8;  // position and number of holders; each holder is four bytes more
  return bytes <= headers ? 0 : (bytes - headers - 4 * held) / per_cell;
}

// ---- blocks ----------------------------------------------------------------------------------------------------------------------

Status LlamaCppEngine::export_blocks(SeqId seq, int32_t first_block, std::span<const std::span<std::byte>> out) {
  if (!info_.reuse) return error(Code::kUnsupported, info_.reuse_off_reason);
  const int64_t begin = int64_t{first_block} * info_.block_tokens;
  KV_CHECK(first_block >= 0 && begin + static_cast<int64_t>(out.size()) * info_.block_tokens <= length(seq));
  for (const auto& block : out) KV_CHECK(block.size() == static_cast<size_t>(info_.block_bytes));
  if (out.empty()) return {};
  const LogCapture capture(true);
  return info_.layout == Layout::kUnified ? export_unified(seq, static_cast<int32_t>(begin), out)
                                          : export_lane(seq, static_cast<int32_t>(begin), out);
}

Status LlamaCppEngine::import_blocks(SeqId seq, int32_t first_block, std::span<const std::span<const std::byte>> in) {
  if (!info_.reuse) return error(Code::kUnsupported, info_.reuse_off_reason);
  KV_CHECK(first_block >= 0 && int64_t{first_block} * info_.block_tokens == length(seq));
  const int32_t begin = length(seq);
  for (const auto& block : in) {
    if (block.size() != static_cast<size_t>(info_.block_bytes)) return error(Code::kCorrupt, "a block is not of block_bytes");
  }
  if (in.empty()) return {};
  if (begin + static_cast<int64_t>(in.size()) * info_.block_tokens > info_.seq_tokens_max) {
    return error(Code::kResourceExhausted, "the sequence is at its longest");
  }
  const LogCapture capture(true);
  return info_.layout == Layout::kUnified ? import_unified(seq, begin, in) : import_lane(seq, begin, in);
}

Result<KvRun> LlamaCppEngine::read_run(llama_seq_id seq, int32_t begin, int32_t end, GrowingBuffer& buffer) {
  const auto blob = buffer.take(codec_->blob_bytes(end - begin));
  const size_t written = llama_state_seq_get_data(context_.get(), raw(blob), blob.size(), seq);
  if (written != blob.size()) return error(Code::kInternal, "llama.cpp gave a sequence state of unexpected size");
  return codec_->open(blob, begin, end);
}

Status LlamaCppEngine::export_unified(SeqId seq, int32_t begin, std::span<const std::span<std::byte>> out) {
  for (size_t at = 0; at < out.size(); at += kBlocksAtOnce) {
    const auto blocks = out.subspan(at, std::min(kBlocksAtOnce, out.size() - at));
    const int32_t from = begin + static_cast<int32_t>(at) * info_.block_tokens;
    const int32_t to = from + static_cast<int32_t>(blocks.size()) * info_.block_tokens;
    llama_memory_seq_cp(memory(), static_cast<llama_seq_id>(seq.value), scratch(), from, to);
    const auto run = read_run(scratch(), from, to, blob_);
    llama_memory_seq_rm(memory(), scratch(), -1, -1);
    if (!run) return tl::make_unexpected(run.error());
    codec_->cut(*run, from, blocks);
  }
  return {};
}

Status LlamaCppEngine::import_unified(SeqId seq, int32_t begin, std::span<const std::span<const std::byte>> in) {
  const auto target = static_cast<llama_seq_id>(seq.value);
  for (size_t at = 0; at < in.size(); at += kBlocksAtOnce) {
    const auto blocks = in.subspan(at, std::min(kBlocksAtOnce, in.size() - at));
    const int32_t from = begin + static_cast<int32_t>(at) * info_.block_tokens;
    const int32_t to = from + static_cast<int32_t>(blocks.size()) * info_.block_tokens;
    const auto blob = blob_.take(codec_->blob_bytes(to - from));
    codec_->assemble(scratch(), 0, nullptr, from, blocks, blob);
    if (llama_state_seq_set_data(context_.get(), raw(blob), blob.size(), scratch()) != blob.size()) {
      // The blob is of this context's own form, so all that can be missing is room.
      llama_memory_seq_rm(memory(), scratch(), -1, -1);
      if (at > 0) llama_memory_seq_rm(memory(), target, begin == 0 ? -1 : begin, -1);
      return error(Code::kResourceExhausted, "no free KV cells for these blocks");
    }
    llama_memory_seq_cp(memory(), scratch(), target, from, to);
    llama_memory_seq_rm(memory(), scratch(), -1, -1);
  }
  length(seq) = begin + static_cast<int32_t>(in.size()) * info_.block_tokens;
  return {};
}

Status LlamaCppEngine::export_lane(SeqId seq, int32_t begin, std::span<const std::span<std::byte>> out) {
  // A long lane leaves in pieces; the first of them reads it, and the others find it read.
  if (!lane_run_ || lane_ != seq) {
    lane_run_.reset();
    auto run = read_run(static_cast<llama_seq_id>(seq.value), 0, length(seq), blob_);
    if (!run) return tl::make_unexpected(run.error());
    lane_run_ = std::move(*run);
    lane_ = seq;
  }
  codec_->cut(*lane_run_, begin, out);
  return {};
}

Status LlamaCppEngine::import_lane(SeqId seq, int32_t begin, std::span<const std::span<const std::byte>> in) {
  const auto lane = static_cast<llama_seq_id>(seq.value);
  lane_run_.reset();  // its buffer is needed
  std::optional<KvRun> old;
  if (begin > 0) {
    auto run = read_run(lane, 0, begin, old_lane_);
    if (!run) return tl::make_unexpected(run.error());
    old = std::move(*run);
  }
  const int32_t end = begin + static_cast<int32_t>(in.size()) * info_.block_tokens;
  const auto blob = blob_.take(codec_->blob_bytes(end));
  codec_->assemble(lane, seq.value, old ? &*old : nullptr, begin, in, blob);
  if (llama_state_seq_set_data(context_.get(), raw(blob), blob.size(), lane) == blob.size()) {
    length(seq) = end;
    return {};
  }
  llama_memory_seq_rm(memory(), lane, -1, -1);
  if (old) {
    const auto back = old_lane_.take(old->blob.size());
    const bool restored = llama_state_seq_set_data(context_.get(), raw(back), back.size(), lane) == back.size();
    KV_CHECK(restored);  // it fitted a moment ago, and nobody else uses this lane's cells
  }
  return error(Code::kInternal, "llama.cpp refused the state of a lane");
}

}  // namespace kvtide::engine
