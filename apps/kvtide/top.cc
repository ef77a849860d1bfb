// `kvtide top`: a live view of a running server's tiers, requests and sessions.
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "apps/kvtide/commands.h"
#include "apps/kvtide/http_client.h"
#include "apps/kvtide/top_frame.h"

namespace kvtide::app {
namespace {

constexpr auto kTimeout = std::chrono::seconds(5);
constexpr size_t kLinesAboveSessions = 14;  // with all lines of regret
constexpr size_t kWidthWithoutTerminal = 140;
constexpr size_t kRowsWithoutTerminal = 60;

struct TopOptions {
  ServerChoice server;
  bool once = false;
  double interval_s = 1;
};

base::Result<TopSnapshot> take_snapshot(HttpClient& client, const std::string& url) {
  TopSnapshot out{.url = url, .at_s = 0, .tiers = {}, .stats = {}, .sessions = {}};
  for (const auto& [target, into] :
       {std::pair{"/kv/v1/tiers", &out.tiers}, {"/kv/v1/stats", &out.stats}, {"/kv/v1/sessions?limit=200", &out.sessions}}) {
    auto reply = client.get(target, kTimeout);
    if (!reply) return tl::make_unexpected(reply.error());
    if (!reply->ok()) return base::error(base::Code::kUnavailable, std::string(target) + ": " + reply->problem());
    *into = reply->json();
  }
  out.at_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return out;
}

/// Waits for the next frame; false when the user asked to stop. SIGINT and SIGTERM come as bytes, so the terminal is always restored.
class FrameTimer {
 public:
  FrameTimer() {
    sigset_t stop;
    sigemptyset(&stop);
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&stop, s);
    sigprocmask(SIG_BLOCK, &stop, &before_);
    fd_ = signalfd(-1, &stop, SFD_CLOEXEC);
  }
  FrameTimer(const FrameTimer&) = delete;
  FrameTimer& operator=(const FrameTimer&) = delete;
  ~FrameTimer() {
    if (fd_ >= 0) close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  bool wait(double seconds) const {
    pollfd stop{fd_, POLLIN, 0};
    return poll(&stop, 1, static_cast<int>(seconds * 1000)) == 0;
  }

 private:
  int fd_ = -1;
  sigset_t before_{};
};

int run_top(const TopOptions& o) {
  auto endpoint = parse_endpoint(o.server.url);
  if (!endpoint) return fail({endpoint.error().code, "--url: " + endpoint.error().message});
  endpoint->api_key = o.server.api_key;
  HttpClient client(*endpoint);
  auto now = take_snapshot(client, o.server.url);
  if (!now) return fail(now.error());
  if (o.once || isatty(STDOUT_FILENO) == 0) {
    std::fputs(top_frame(*now, nullptr, kWidthWithoutTerminal, kRowsWithoutTerminal).c_str(), stdout);
    return kExitDone;
  }
  const FrameTimer timer;
  std::optional<TopSnapshot> before;
  std::fputs("\033[?1049h\033[?25l", stdout);  // alternate screen, no cursor
  base::Status result;
  for (;;) {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) size.ws_row = 40, size.ws_col = kWidthWithoutTerminal;
    const size_t rows = size.ws_row > kLinesAboveSessions + 2 ? size.ws_row - kLinesAboveSessions - 2 : 1;
    std::printf("\033[H\033[J%sctrl-c ends", top_frame(*now, before ? &*before : nullptr, size.ws_col, rows).c_str());
    std::fflush(stdout);
    if (!timer.wait(o.interval_s)) break;
    before = std::move(*now);
    now = take_snapshot(client, o.server.url);
    if (!now) {
      result = tl::make_unexpected(now.error());
      break;
    }
  }
  std::fputs("\033[?25h\033[?1049l", stdout);
  std::fflush(stdout);
  return result ? kExitDone : fail(result.error());
}

}  // namespace

Command add_top(CLI::App& program) {
  CLI::App* app = program.add_subcommand("top", "live view of a running server: tiers, requests, sessions");
  app->footer("Examples:\n  kvtide top\n  kvtide top --once --url http://127.0.0.1:8080     # one frame, for scripts");
  const auto o = std::make_shared<TopOptions>();
  o->server.add_to(*app);
  app->add_flag("--once", o->once, "print one frame and end");
  app->add_option("--interval", o->interval_s, "seconds between frames")->check(CLI::Range(0.1, 3600.0))->capture_default_str();
  return {app, [o] { return run_top(*o); }};
}

}  // namespace kvtide::app
