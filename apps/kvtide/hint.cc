// `kvtide hint VERB SESSION`: one hint to a running server, and its receipt.
#include <cstdio>
#include <memory>
#include <optional>

#include "apps/kvtide/commands.h"
#include "apps/kvtide/http_client.h"
#include "apps/kvtide/replay_run.h"

namespace kvtide::app {
namespace {

constexpr auto kTimeout = std::chrono::seconds(10);

struct HintOptions {
  ServerChoice server;
  std::string verb, session, tool, target, hint_id;
  std::optional<int64_t> expected_ms, deadline_ms, start, end;
  std::optional<double> ttl_s;
};

/// A flag that the verb has no use for is an error here: a person typed it and expects it to matter.
base::Status check(const HintOptions& o) {
  const auto only = [&](bool given, const char* flag, const char* verb) -> base::Status {
    if (!given || o.verb == verb) return {};
    return base::error(base::Code::kInvalidArgument, std::string(flag) + ": only for " + verb);
  };
  for (const auto& status :
       {only(o.expected_ms.has_value(), "--expected-ms", "pause"), only(!o.tool.empty(), "--tool", "pause"),
        only(o.deadline_ms.has_value(), "--deadline-ms", "prefetch"), only(o.ttl_s.has_value(), "--ttl-s", "retain")}) {
    if (!status) return status;
  }
  if ((o.start || o.end) && o.target.empty())
    return base::error(base::Code::kInvalidArgument, "--start, --end: say what they count with --target");
  return {};
}

int run_hint(const HintOptions& o) {
  if (auto s = check(o); !s) return fail(s.error());
  auto endpoint = parse_endpoint(o.server.url);
  if (!endpoint) return fail({endpoint.error().code, "--url: " + endpoint.error().message});
  endpoint->api_key = o.server.api_key;
  Json more = Json::object();
  const auto put = [&more](const char* key, const auto& value) {
    if (value) more[key] = *value;
  };
  put("expected_ms", o.expected_ms);
  put("deadline_ms", o.deadline_ms);
  put("ttl_s", o.ttl_s);
  put("start", o.start);
  put("end", o.end);
  for (const auto& [key, text] : {std::pair{"tool", &o.tool}, {"target", &o.target}, {"hint_id", &o.hint_id}}) {
    if (!text->empty()) more[key] = *text;
  }
  HttpClient client(*endpoint);
  const auto reply = client.post("/kv/v1/hints", native_hint(o.verb, o.session, std::move(more)), kTimeout);
  if (!reply) return fail(reply.error());
  if (!reply->ok()) return fail({base::Code::kUnavailable, reply->problem()});
  std::printf("%s\n", reply->json().dump(2).c_str());
  return kExitDone;
}

}  // namespace

Command add_hint(CLI::App& program) {
  CLI::App* app = program.add_subcommand("hint", "tell a running server something about a session; prints the receipt");
  app->footer(
      "Examples:\n"
      "  kvtide hint pause coder-7 --tool pytest --expected-ms 8000     # it waits for a tool\n"
      "  kvtide hint prefetch coder-7 --deadline-ms 500                 # its next request comes in half a second\n"
      "  kvtide hint offload coder-7                                    # it leaves the device, and stays in host memory\n"
      "  kvtide hint pause coder-7 --tool pytest --expected-ms 30000");
  const auto o = std::make_shared<HintOptions>();
  app->add_option("verb", o->verb, "offload, prefetch, evict, retain, end, pause or resume")
      ->required()
      ->check(CLI::IsMember({"offload", "prefetch", "evict", "retain", "end", "pause", "resume"}));
  app->add_option("session", o->session, "the session's id")->required();
  app->add_option("--tool", o->tool, "pause: which tool runs");
  app->add_option("--expected-ms", o->expected_ms, "pause: how long it will take")->check(CLI::NonNegativeNumber);
  app->add_option("--deadline-ms", o->deadline_ms, "prefetch: when it is needed, from now")->check(CLI::NonNegativeNumber);
  app->add_option("--ttl-s", o->ttl_s, "retain: how long")->check(CLI::PositiveNumber);
  app->add_option("--target", o->target, "what --start and --end count")->check(CLI::IsMember({"messages", "tools", "tokens", "blocks"}));
  app->add_option("--start", o->start, "first one")->check(CLI::NonNegativeNumber);
  app->add_option("--end", o->end, "one after the last")->check(CLI::NonNegativeNumber);
  app->add_option("--hint-id", o->hint_id, "repeats with the same id do nothing");
  o->server.add_to(*app);
  return {app, [o] { return run_hint(*o); }};
}

}  // namespace kvtide::app
