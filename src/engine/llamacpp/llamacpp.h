// Loads a GGUF model through llama.cpp: one engine and one text model over the same weights.
//
// No llama.cpp type shows here. The engine reuses KV when the model keeps plain full attention state; for any other (sliding window,
// recurrent, encoder) it serves with info().reuse false and says why.
//
// Threading: load() may be called from any thread, one at a time. The log callback may be called from any thread.
// Cost: load() reads the model file, allocates the whole KV cache and decodes three tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/api/engine.h"
#include "engine/api/text_model.h"

namespace kvtide::engine {

enum class LayoutChoice { kAuto, kUnified, kLanes };
enum class FlashAttention { kAuto, kOn, kOff };
enum class LogLevel { kInfo, kWarning, kError };

struct LlamaCppOptions {
  std::string model_path;
  int32_t n_gpu_layers = -1;     // -1: all that the backend takes; 0: none
  int32_t threads = 0;           // 0: one per physical core
  int32_t threads_batch = 0;     // 0: as threads
  int32_t batch_size = 2048;     // tokens in one step
  int32_t ubatch_size = 512;     // tokens in one pass inside a step
  FlashAttention flash_attn = FlashAttention::kAuto;
  std::string cache_type_k = "f16";
  std::string cache_type_v = "f16";
  int32_t ctx_size = 4096;       // the longest one sequence may grow; 0: what the model was trained for
  int32_t parallel = 4;          // requests that run at once
  int64_t device_tokens = 0;     // KV cells in all; 0: ctx_size x parallel
  LayoutChoice layout = LayoutChoice::kAuto;
  int32_t block_tokens = 64;
  LogLevel log_level = LogLevel::kWarning;
  std::function<void(LogLevel, std::string_view)> log;  // one line, no newline; null: dropped. One per process: the last load() wins
};

struct LoadedModel {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TextModel> text;  // shares the weights with the engine; either may outlive the other
};

/// Errors: kNotFound (no such file), kInvalidArgument (not a model that llama.cpp runs; an option that cannot be met), kResourceExhausted
/// (the KV cache does not fit into memory). Every message is one line and says what to change.
base::Result<LoadedModel> load(const LlamaCppOptions& options);

/// The version of the llama.cpp that this build links.
std::string llamacpp_version();

/// Writes the model of file `from` to file `to` with Q8_0 weights, which CPUs run about twice as fast as Q4_1. Takes seconds for a small model.
/// Errors: kInternal (unreadable, disk full); `to` is then as it was.
base::Status requantize_q8_0(const std::string& from, const std::string& to);

}  // namespace kvtide::engine
