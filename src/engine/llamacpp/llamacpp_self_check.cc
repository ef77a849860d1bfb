// The proof, at every load, that this model in this build of llama.cpp keeps its state in the form that kv_codec knows. Whatever differs
// (M-RoPE positions, two caches, a future format) shows as a difference of bytes here, and turns reuse off instead of corrupting a reply.
#include <array>
#include <vector>

#include "engine/llamacpp/llamacpp_engine.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;

constexpr int32_t kTokens = 3;

std::vector<std::byte> state_of(llama_context* context, llama_seq_id seq) {
  std::vector<std::byte> blob(llama_state_seq_get_size(context, seq));
  const size_t written = llama_state_seq_get_data(context, reinterpret_cast<uint8_t*>(blob.data()), blob.size(), seq);
  blob.resize(written);
  return blob;
}

std::vector<std::vector<std::byte>> cut_all(const KvCodec& codec, const KvRun& run) {
  std::vector<std::vector<std::byte>> cells(kTokens, std::vector<std::byte>(codec.block_bytes()));
  const std::vector<std::span<std::byte>> out(cells.begin(), cells.end());
  codec.cut(run, 0, out);
  return cells;
}

KvCheck refuse(std::string why) { return {.geometry = std::nullopt, .why_not = std::move(why)}; }

/// With one token per block, so that cutting and assembling both work cell by cell.
KvCheck round_trip(llama_context* context, Layout layout, llama_seq_id to) {
  const auto stream = [layout](llama_seq_id seq) { return layout == Layout::kLanes ? static_cast<uint32_t>(seq) : 0U; };
  const auto blob = state_of(context, 0);
  auto geometry = learn_geometry(blob);
  if (!geometry) return refuse("the state of a sequence has a form unknown here (" + geometry.error().message + ")");
  const KvCodec codec(*geometry, 1);
  const auto run = codec.open(blob, 0, kTokens);
  if (!run) return refuse("the state of a sequence has a form unknown here (" + run.error().message + ")");
  if (stream(to) >= geometry->streams) return refuse("streams are not numbered as sequences");

  const auto cells = cut_all(codec, *run);
  const std::vector<std::span<const std::byte>> views(cells.begin(), cells.end());
  std::vector<std::byte> again(codec.blob_bytes(kTokens));
  codec.assemble(0, stream(0), nullptr, 0, views, again);
  if (again != blob) return refuse("the state of a sequence is not put together as it was");

  codec.assemble(to, stream(to), nullptr, 0, views, again);
  if (llama_state_seq_set_data(context, reinterpret_cast<const uint8_t*>(again.data()), again.size(), to) != again.size()) {
    return refuse("llama.cpp does not take a state put together from blocks");
  }
  const auto restored_blob = state_of(context, to);
  const auto restored = codec.open(restored_blob, 0, kTokens);
  if (!restored || cut_all(codec, *restored) != cells) return refuse("a restored sequence differs from the saved one");
  return {.geometry = std::move(*geometry), .why_not = {}};
}

}  // namespace

std::string reuse_obstacle(const LlamaModel& model) {
  if (llama_model_n_swa(model.model) > 0) return "the model uses sliding window attention";
  if (llama_model_is_recurrent(model.model)) return "the model keeps recurrent state";
  if (llama_model_is_hybrid(model.model)) return "the model keeps recurrent state beside attention";
  if (llama_model_has_encoder(model.model)) return "the model has an encoder";
  return {};
}

Result<KvCheck> check_kv(const LlamaModel& model, llama_context* context, Layout layout, int32_t to) {
  const int32_t vocab = llama_vocab_n_tokens(model.vocab());
  std::array<llama_token, kTokens> tokens{};
  for (int32_t i = 0; i < kTokens; ++i) tokens[i] = std::min(i + 1, vocab - 1);
  const int32_t answer = llama_decode(context, llama_batch_get_one(tokens.data(), kTokens));
  if (answer != 0) return error(Code::kInternal, "llama.cpp cannot decode with this model (llama_decode answered " + std::to_string(answer) + ")");
  KvCheck check;
  if (std::string why = reuse_obstacle(model); !why.empty()) {
    check = refuse(std::move(why));
  } else {
    try {
      check = round_trip(context, layout, to);
    } catch (const std::exception& failure) {
      check = refuse(failure.what());
    }
  }
  llama_memory_clear(llama_get_memory(context), false);
  return check;
}

}  // namespace kvtide::engine
