#include "apps/kvtide/replay_server.h"

#include <fstream>
#include <utility>

namespace kvtide::app {
namespace {

using base::Code;
using base::error;
constexpr auto kStartTimeout = std::chrono::minutes(3);
constexpr auto kStopTimeout = std::chrono::seconds(30);
constexpr auto kLookEvery = std::chrono::milliseconds(25);

}  // namespace

base::Result<ReplayServer> ReplayServer::start(const std::filesystem::path& executable, const std::vector<std::string>& flags,
                                               const std::filesystem::path& folder) {
  const auto port_file = folder / "port";
  const auto log = folder / "server.log";
  std::error_code ec;
  std::filesystem::remove(port_file, ec);
  std::filesystem::remove(log, ec);
  std::vector<std::string> command{executable.string(), "serve", "--port", "0", "--port-file", port_file.string()};
  command.insert(command.end(), flags.begin(), flags.end());
  auto child = ChildProcess::start(command, log);
  if (!child) return tl::make_unexpected(child.error());
  ReplayServer server(std::move(*child), log);
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  for (unsigned port = 0;;) {
    if (std::ifstream(port_file) >> port && port > 0 && port < 65536) {
      server.endpoint_.port = static_cast<uint16_t>(port);
      return server;
    }
    // Waiting on the child itself: a server that fails to start is seen at once.
    if (const auto status = server.child_.wait(kLookEvery)) {
      return error(Code::kUnavailable,
                   "the server ended with status " + std::to_string(*status) + " before it listened:\n" + last_lines(log, 8));
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return error(Code::kDeadlineExceeded, "the server did not listen within three minutes:\n" + last_lines(log, 8));
    }
  }
}

base::Status ReplayServer::stop() {
  const int status = child_.stop(kStopTimeout);
  if (status == 0) return {};
  return error(Code::kInternal, "the server ended with status " + std::to_string(status) + ":\n" + last_lines(log_, 8));
}

}  // namespace kvtide::app
