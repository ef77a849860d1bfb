#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "server/admin/admin.h"
#include "server/http/auth.h"
#include "server/http/error_map.h"
#include "server/http/listener.h"
#include "server/http/route.h"
#include "server/openai/generation.h"
#include "server/openai/json_fields.h"

namespace kvtide::server {
namespace {

GenerationOptions generation_options(const ServerOptions& options, const engine::EngineInfo& info) {
  return {.model_name = options.alias.empty() ? info.model_name : options.alias,
          .other_name = info.model_name,
          .strict_model = options.strict_model,
          .allow_forced_replies = options.allow_forced_replies};
}

bool is_inference(Endpoint endpoint) { return endpoint == Endpoint::kChat || endpoint == Endpoint::kCompletions; }

}  // namespace

struct Server::State final : App {
  serving::Service& service;
  const ServerOptions options;
  const Auth auth;
  const GenerationOptions generation;
  std::unique_ptr<Listener> listener;
  std::atomic<const Listener*> counted{nullptr};  // the same, for threads that may run before start() has returned
  Admin admin;

  State(serving::Service& the_service, ServerOptions the_options)
      : service(the_service), options(std::move(the_options)), auth(options.api_keys, options.admin_key),
        generation(generation_options(options, service.engine_info())),
        admin(service, {options.version, options.policy_name, options.hints, options.dialects, options.verbs},
              [this] { const Listener* known = counted; return known != nullptr ? known->connection_count() : 0; }) {}

  std::optional<Response> screen(const Request& head) override {
    const Routing routing = route(head.method, head.target);
    if (!routing.match) {
      if (routing.allow.empty()) return status_response(404, "there is nothing at this path", "not_found");
      Response response = status_response(405, "this path does not take this method", "method_not_allowed");
      if (head.method == Method::kOptions) response = Response{.status = 204, .content_type = {}, .body = {}, .headers = {}};
      response.headers.emplace_back("Allow", routing.allow);
      return response;
    }
    if (auth.identify(head.headers, routing.match->access)) return std::nullopt;
    if (routing.match->access == Access::kAdmin && options.admin_key.empty()) {
      return status_response(403, "the admin API is closed: this server was started with API keys but without --admin-key", "no_admin_key");
    }
    return status_response(401, "a valid key is needed: Authorization: Bearer KEY", "invalid_api_key");
  }

  void handle(Request request, std::shared_ptr<Exchange> exchange) override try {
    const Routing routing = route(request.method, request.target);
    const auto caller = routing.match ? auth.identify(request.headers, routing.match->access) : std::nullopt;
    if (!caller) return exchange->send(status_response(404, "there is nothing at this path", "not_found"));
    switch (routing.match->endpoint) {
      case Endpoint::kChat:
        return start_generation(service, generation, ReplyKind::kChat, caller->tenant, std::move(request), exchange);
      case Endpoint::kCompletions:
        return start_generation(service, generation, ReplyKind::kCompletion, caller->tenant, std::move(request), exchange);
      case Endpoint::kModels: return exchange->send(json_response({{"object", "list"}, {"data", Json::array({model_json()})}}));
      case Endpoint::kModel: {
        const std::string& id = routing.match->id;
        if (id == generation.model_name || id == generation.other_name) return exchange->send(json_response(model_json()));
        return exchange->send(status_response(404, "model: this server serves " + generation.model_name + " only", "model_not_found"));
      }
      default: return admin.handle(*routing.match, *caller, request, exchange);
    }
  } catch (const std::exception&) {
    // Memory, in practice. What was said is not repeated: it may hold text of the request.
    exchange->send(error_response({base::Code::kInternal, "the request could not be handled"}));
  }

  Response refusal(int status, std::string message) override {
    std::string_view code = "bad_request";
    if (status == 413) code = "body_too_large";
    if (status == 503) code = "overloaded";
    if (status == 504) code = "timeout";
    return status_response(status, message, code);
  }

  std::chrono::milliseconds deadline(const Request& head) override {
    const Routing routing = route(head.method, head.target);
    return routing.match && is_inference(routing.match->endpoint) ? options.request_deadline : options.admin_deadline;
  }

  Json model_json() const {
    const engine::EngineInfo& info = service.engine_info();
    Json model;
    model["id"] = generation.model_name;
    model["object"] = "model";
    model["created"] = 0;
    model["owned_by"] = "kvtide";
    model["max_model_len"] = info.seq_tokens_max;
    model["description"] = info.model_description;
    return model;
  }

  static Response json_response(const Json& body) {
    Response response;
    response.body = to_text(body);
    return response;
  }
};

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() { stop(std::chrono::milliseconds(0)); }

base::Result<std::unique_ptr<Server>> Server::start(serving::Service& service, ServerOptions options) {
  ListenOptions listen;
  listen.host = options.host;
  listen.port = options.port;
  listen.io_threads = std::max(1, options.io_threads);
  listen.worker_threads = std::max(1, options.worker_threads);
  listen.connections_max = options.connections_max;
  listen.body_bytes_max = options.body_bytes_max;
  listen.bodies_bytes_max = std::max(options.bodies_bytes_max, static_cast<int64_t>(options.body_bytes_max));
  listen.stream_bytes_max = options.stream_bytes_max;
  listen.idle_timeout = options.idle_timeout;
  listen.header_timeout = options.header_timeout;
  listen.body_timeout = options.body_timeout;
  listen.write_timeout = options.write_timeout;
  auto state = std::make_unique<State>(service, std::move(options));
  auto listener = Listener::start(*state, listen);
  if (!listener) return tl::make_unexpected(std::move(listener.error()));
  state->listener = std::move(*listener);
  state->counted = state->listener.get();
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

uint16_t Server::port() const { return state_->listener->port(); }

void Server::stop(std::chrono::milliseconds drain) { state_->listener->stop(drain); }

}  // namespace kvtide::server
