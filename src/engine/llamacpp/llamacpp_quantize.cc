#include <ggml.h>
#include <llama.h>

#include <filesystem>

#include "engine/llamacpp/llamacpp.h"

namespace kvtide::engine {

std::string llamacpp_version() { return llama_version(); }

base::Status requantize_q8_0(const std::string& from, const std::string& to) {
  llama_backend_init();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_MOSTLY_Q8_0;
  params.allow_requantize = true;
  // Under another name until it is whole: a half-written model is never taken for one.
  const std::string part = to + ".part";
  uint32_t failed = 1;
  try {
    failed = llama_model_quantize(from.c_str(), part.c_str(), &params);
  } catch (const std::exception&) {
    failed = 1;
  }
  std::error_code error;
  if (failed == 0) std::filesystem::rename(part, to, error);
  if (failed != 0 || error) {
    std::filesystem::remove(part, error);
    return base::error(base::Code::kInternal, from + " could not be written as Q8_0 to " + to + "; the published file works too, more slowly");
  }
  return {};
}

}  // namespace kvtide::engine
