// The text seam through llama.cpp's chat templates, tokeniser and reply parsers.
//
// Threading: thread-safe, as text_model.h asks.
// Cost: render() analyses the template each time, as llama.cpp does: milliseconds, growing with the messages.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/api/text_model.h"
#include "engine/llamacpp/llamacpp_model.h"

namespace kvtide::engine {

/// Errors: kInvalidArgument (the model's chat template does not compile).
base::Result<std::unique_ptr<TextModel>> make_llamacpp_text_model(std::shared_ptr<const LlamaModel> model);

}  // namespace kvtide::engine
