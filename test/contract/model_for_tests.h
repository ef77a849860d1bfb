// The model file that tests with a real model use.
//
// Threading: thread-safe.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvtide::engine {

/// KVTIDE_TEST_MODEL, or the default model where tools/setup puts it; empty when there is none.
inline std::string model_for_tests() {
  std::string path;
  if (const char* set = std::getenv("KVTIDE_TEST_MODEL")) {
    path = set;
  } else if (const char* home = std::getenv("HOME")) {
    path = std::string(home) + "/.cache/kvtide/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  std::error_code ec;
  return std::filesystem::is_regular_file(path, ec) ? path : std::string();
}

inline constexpr const char* kNoModel =
    "SKIPPED: no model file. Set KVTIDE_TEST_MODEL to a GGUF file, or run 'kvtide model pull' for the default one.";

}  // namespace kvtide::engine
