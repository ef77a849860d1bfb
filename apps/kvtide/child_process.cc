#include "apps/kvtide/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <utility>

extern char** environ;

namespace kvtide::app {

using base::Code;
using base::error;

base::Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& command, const std::filesystem::path& log,
                                               const std::vector<std::string>& environment) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> env;
  for (const std::string& setting : environment) env.push_back(const_cast<char*>(setting.c_str()));
  for (char** e = environ; *e != nullptr; ++e) env.push_back(*e);
  env.push_back(nullptr);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (out < 0) return error(Code::kUnavailable, "cannot write " + log.string() + ": " + std::strerror(errno));

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls until exec.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execvpe(argv[0], argv.data(), env.data());
    _exit(127);
  }
  const int fork_errno = errno;
  close(out);
  if (pid < 0) return error(Code::kUnavailable, "cannot start " + command.front() + ": " + std::strerror(fork_errno));
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  ChildProcess child(pid, pidfd);
  if (pidfd < 0) return error(Code::kUnavailable, std::string("cannot watch the child process: ") + std::strerror(errno));
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::exchange(other.pidfd_, -1)), status_(other.status_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    kill_and_reap();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::exchange(other.pidfd_, -1);
    status_ = other.status_;
  }
  return *this;
}

ChildProcess::~ChildProcess() { kill_and_reap(); }

void ChildProcess::kill_and_reap() {
  if (pid_ > 0 && !status_) {
    kill(pid_, SIGKILL);
    int raw = 0;
    while (waitpid(pid_, &raw, 0) < 0 && errno == EINTR) {
    }
  }
  if (pidfd_ >= 0) close(pidfd_);
  pid_ = pidfd_ = -1;
}

std::optional<int> ChildProcess::wait(std::chrono::milliseconds timeout) {
  if (status_) return status_;
  pollfd end{pidfd_, POLLIN, 0};
  if (poll(&end, 1, static_cast<int>(timeout.count())) <= 0) return std::nullopt;
  int raw = 0;
  while (waitpid(pid_, &raw, 0) < 0) {
    if (errno != EINTR) return status_ = 127;
  }
  return status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
}

int ChildProcess::stop(std::chrono::milliseconds deadline) {
  if (status_) return *status_;
  kill(pid_, SIGTERM);
  if (!wait(deadline)) {
    kill(pid_, SIGKILL);
    wait(std::chrono::minutes(1));
  }
  return status_.value_or(127);
}

base::Result<TemporaryFolder> TemporaryFolder::make() {
  std::error_code ec;
  std::string name = (std::filesystem::temp_directory_path(ec) / "kvtide-XXXXXX").string();
  if (ec || mkdtemp(name.data()) == nullptr)
    return error(Code::kUnavailable, "cannot make a temporary folder; set TMPDIR to a writable one");
  return TemporaryFolder(name);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ec;
  if (!path_.empty()) std::filesystem::remove_all(path_, ec);
}

std::string last_lines(const std::filesystem::path& file, size_t lines) {
  std::ifstream in(file);
  std::deque<std::string> kept;
  for (std::string line; std::getline(in, line);) {
    kept.push_back(std::move(line));
    if (kept.size() > lines) kept.pop_front();
  }
  std::string out;
  for (const std::string& line : kept) out += line + "\n";
  return out;
}

}  // namespace kvtide::app
