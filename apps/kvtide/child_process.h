// A child process that cannot outlive its owner: started, waited for with a deadline, ended by SIGTERM and then SIGKILL.
//
// Threading: confined to the thread that started it (the kernel ends the child when that thread ends).
// Errors: kUnavailable (cannot start), kDeadlineExceeded.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvtide::app {

class ChildProcess {
 public:
  /// Runs `command` (found through PATH) with stdout and stderr appended to `log`. `environment` adds NAME=value settings.
  static base::Result<ChildProcess> start(const std::vector<std::string>& command, const std::filesystem::path& log,
                                          const std::vector<std::string>& environment = {});
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();  // kills it if it still runs

  /// Waits up to `timeout` for the end. Its exit status (128 + signal when killed), or nullopt when it still runs. Blocks.
  std::optional<int> wait(std::chrono::milliseconds timeout);

  /// SIGTERM, a wait of `deadline`, then SIGKILL. The exit status. Blocks.
  int stop(std::chrono::milliseconds deadline);

 private:
  ChildProcess(pid_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}
  void kill_and_reap();

  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> status_;
};

/// A folder of its own under the temporary folder, removed with everything in it at the end.
class TemporaryFolder {
 public:
  static base::Result<TemporaryFolder> make();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

/// The last `lines` lines of a text file, for error messages.
std::string last_lines(const std::filesystem::path& file, size_t lines);

}  // namespace kvtide::app
