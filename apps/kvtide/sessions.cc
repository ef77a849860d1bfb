// `kvtide sessions list | show | end`: what a running server knows of its sessions.
#include <cstdio>
#include <memory>

#include "apps/kvtide/commands.h"
#include "apps/kvtide/http_client.h"
#include "apps/kvtide/json_read.h"
#include "apps/kvtide/top_frame.h"

namespace kvtide::app {
namespace {

constexpr auto kTimeout = std::chrono::seconds(10);

struct SessionsOptions {
  ServerChoice server;
  std::string id;
  int limit = 100;
  int offset = 0;
};

int print_reply(const base::Result<HttpReply>& reply) {
  if (!reply) return fail(reply.error());
  if (!reply->ok()) return fail({base::Code::kUnavailable, reply->problem()});
  std::printf("%s\n", reply->json().dump(2).c_str());
  return kExitDone;
}

int run_list(HttpClient& client, const SessionsOptions& o) {
  const auto reply = client.get("/kv/v1/sessions?limit=" + std::to_string(o.limit) + "&offset=" + std::to_string(o.offset), kTimeout);
  if (!reply) return fail(reply.error());
  if (!reply->ok()) return fail({base::Code::kUnavailable, reply->problem()});
  const Json answer = reply->json();
  const Json& sessions = list_of(answer, "sessions");
  std::fputs(session_table(sessions, sessions.size()).c_str(), stdout);
  const int64_t total = int_of(answer, "total", static_cast<int64_t>(sessions.size()));
  std::printf("%zu of %lld sessions\n", sessions.size(), static_cast<long long>(total));
  return kExitDone;
}

}  // namespace

Command add_sessions(CLI::App& program) {
  CLI::App* app = program.add_subcommand("sessions", "list, show or end the sessions of a running server");
  app->require_subcommand(1);
  app->footer("Example:\n  kvtide sessions list\n  kvtide sessions show coder-7\n  kvtide sessions end coder-7");
  const auto o = std::make_shared<SessionsOptions>();
  CLI::App* list = app->add_subcommand("list", "one line a session");
  list->add_option("--limit", o->limit, "how many")->check(CLI::Range(1, 10000))->capture_default_str();
  list->add_option("--offset", o->offset, "skip this many")->check(CLI::NonNegativeNumber)->capture_default_str();
  CLI::App* show = app->add_subcommand("show", "everything about one session, as JSON");
  CLI::App* end = app->add_subcommand("end", "end a session and its children; prints the receipt");
  for (CLI::App* sub : {show, end}) sub->add_option("session", o->id, "the session's id")->required();
  for (CLI::App* sub : {list, show, end}) {
    o->server.add_to(*sub);
    sub->footer("Example:\n  kvtide sessions " + sub->get_name() + (sub == list ? " --limit 20" : " coder-7"));
  }
  return {app, [o, list, show] {
            auto endpoint = parse_endpoint(o->server.url);
            if (!endpoint) return fail({endpoint.error().code, "--url: " + endpoint.error().message});
            endpoint->api_key = o->server.api_key;
            HttpClient client(*endpoint);
            if (list->parsed()) return run_list(client, *o);
            const std::string target = "/kv/v1/sessions/" + percent_encoded(o->id);
            return print_reply(show->parsed() ? client.get(target, kTimeout) : client.del(target, kTimeout));
          }};
}

}  // namespace kvtide::app
