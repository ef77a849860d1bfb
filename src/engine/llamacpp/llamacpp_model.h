// Ownership of what llama.cpp loads, and how layout and attention are chosen.
//
// Threading: LlamaModel is immutable after loading and thread-safe, as llama.cpp promises of its model and vocabulary.
#pragma once

#include <memory>
#include <string>

#include "engine/llamacpp/llamacpp.h"
#include "llama.h"

namespace kvtide::engine {

/// The weights. Shared (shared_ptr) by the engine and the text model, which are owned apart and end in any order.
struct LlamaModel {
  explicit LlamaModel(llama_model* loaded, std::string file) : model(loaded), path(std::move(file)) {}
  LlamaModel(const LlamaModel&) = delete;
  LlamaModel& operator=(const LlamaModel&) = delete;
  ~LlamaModel() { llama_model_free(model); }

  const llama_vocab* vocab() const { return llama_model_get_vocab(model); }
  /// The value of a metadata key, empty when absent.
  std::string meta(const std::string& key) const;

  llama_model* const model;
  const std::string path;
};

struct ContextChoice {
  Layout layout;
  llama_flash_attn_type flash_attn;
};

/// Layout and attention where the options leave them open. See docs/adr on the KV layout for the measurements behind the choice.
ContextChoice choose_context(const LlamaCppOptions& options);

}  // namespace kvtide::engine
