#include "server/admin/admin.h"

#include <charconv>
#include <utility>
#include <vector>

#include "hint/native.h"
#include "hint/receipt_json.h"
#include "server/http/error_map.h"
#include "server/openai/json_fields.h"

namespace kvtide::server {
namespace {

using base::Code;
using ExchangePtr = std::shared_ptr<Exchange>;

constexpr size_t kPageMax = 1000;

void send_json(Exchange& exchange, const AdminJson& body, int status = 200) {
  Response response;
  response.status = status;
  response.body = to_text(body);
  exchange.send(std::move(response));
}

void send_error(Exchange& exchange, Code code, std::string message) { exchange.send(error_response({code, std::move(message)})); }

/// Sends the error of a Service call that could not be queued.
void check(Exchange& exchange, const base::Status& queued) {
  if (!queued) exchange.send(error_response(queued.error()));
}

std::string query_value(const Match& match, const char* name, std::string fallback) {
  const auto found = match.query.find(name);
  return found == match.query.end() ? std::move(fallback) : found->second;
}

base::Result<size_t> query_number(const Match& match, const char* name, size_t fallback, size_t most) {
  const std::string text = query_value(match, name, std::to_string(fallback));
  size_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value > most) {
    return base::error(Code::kInvalidArgument, std::string(name) + ": must be a whole number from 0 to " + std::to_string(most));
  }
  return value;
}

}  // namespace

void Admin::handle(const Match& match, const Caller& caller, const Request& request, const ExchangePtr& exchange) {
  // The admin speaks for any tenant, others for their own.
  const std::string tenant = caller.admin ? query_value(match, "tenant", caller.tenant) : caller.tenant;
  switch (match.endpoint) {
    case Endpoint::kHealth: return send_json(*exchange, {{"status", "ok"}});
    case Endpoint::kCapabilities: return send_json(*exchange, capabilities_json(service_.engine_info(), service_.text_model(), facts_));
    case Endpoint::kMetrics: return metrics(exchange);
    case Endpoint::kHintPost: return post_hints(tenant, request.body, exchange);
    case Endpoint::kHintGet: return get_hint(tenant, match.id, exchange);
    case Endpoint::kSessionList: return list_sessions(match, exchange);
    case Endpoint::kSessionGet: return get_session(match, exchange);
    case Endpoint::kSessionDelete: return end_session(tenant, match.id, exchange);
    case Endpoint::kTiers:
      return check(*exchange, service_.tiers([exchange](std::vector<serving::TierSnapshot> tiers) {
        exchange->post([exchange, tiers = std::move(tiers)] { send_json(*exchange, tiers_json(tiers)); });
      }));
    case Endpoint::kStats:
      return check(*exchange, service_.stats([exchange](serving::ServiceStats stats) {
        exchange->post([exchange, stats = std::move(stats)] { send_json(*exchange, stats_json(stats)); });
      }));
    default: return send_error(*exchange, Code::kNotFound, "there is nothing here");
  }
}

void Admin::metrics(const ExchangePtr& exchange) {
  // Two questions, one after the other: callbacks may not call the service, so the second is asked from the strand.
  const auto ask_tiers = [this, exchange](serving::ServiceStats stats) {
    exchange->post([this, exchange, stats = std::move(stats)] {
      check(*exchange, service_.tiers([this, exchange, stats](std::vector<serving::TierSnapshot> tiers) {
        exchange->post([this, exchange, stats, tiers = std::move(tiers)] {
          Response response;
          response.content_type = "text/plain; version=0.0.4; charset=utf-8";
          response.body = metrics_text(stats, tiers, connections_());
          exchange->send(std::move(response));
        });
      }));
    });
  };
  check(*exchange, service_.stats(ask_tiers));
}

void Admin::post_hints(const std::string& tenant, const std::string& body, const ExchangePtr& exchange) {
  const auto message = parse_json(body);
  if (!message) return exchange->send(error_response(message.error()));
  auto hints = hint::decode_native(nlohmann::json(*message));
  if (!hints) return exchange->send(error_response(hints.error()));
  const auto done = [exchange, problems = hints->problems](std::vector<hint::Receipt> receipts) {
    exchange->post([exchange, problems, receipts = std::move(receipts)] {
      send_json(*exchange, AdminJson(hint::hint_result_json(receipts, problems)));
    });
  };
  check(*exchange, service_.manage(tenant, std::move(*hints), done));
}

void Admin::get_hint(const std::string& tenant, const std::string& id, const ExchangePtr& exchange) {
  check(*exchange, service_.find_receipt(tenant, id, [exchange](std::optional<hint::Receipt> receipt) {
    exchange->post([exchange, receipt = std::move(receipt)] {
      if (receipt) send_json(*exchange, AdminJson(hint::receipt_json(*receipt)));
      else send_error(*exchange, Code::kNotFound, "no receipt of this hint_id is kept");
    });
  }));
}

void Admin::list_sessions(const Match& match, const ExchangePtr& exchange) {
  const auto offset = query_number(match, "offset", 0, SIZE_MAX / 2);
  if (!offset) return exchange->send(error_response(offset.error()));
  const auto limit = query_number(match, "limit", 100, kPageMax);
  if (!limit) return exchange->send(error_response(limit.error()));
  const serving::Service::SessionQuery query{query_value(match, "tenant", ""), query_value(match, "session", ""), *offset, *limit};
  check(*exchange, service_.sessions(query, [exchange, offset = *offset](std::vector<serving::SessionSnapshot> sessions, size_t total) {
    exchange->post([exchange, offset, total, sessions = std::move(sessions)] {
      AdminJson list = AdminJson::array();
      for (const auto& session : sessions) list.push_back(session_json(session));
      send_json(*exchange, {{"sessions", std::move(list)}, {"offset", offset}, {"total", total}});
    });
  }));
}

void Admin::get_session(const Match& match, const ExchangePtr& exchange) {
  const serving::Service::SessionQuery query{query_value(match, "tenant", ""), match.id, 0, 2};
  check(*exchange, service_.sessions(query, [exchange](std::vector<serving::SessionSnapshot> sessions, size_t) {
    exchange->post([exchange, sessions = std::move(sessions)] {
      if (sessions.empty()) return send_error(*exchange, Code::kNotFound, "no such session");
      if (sessions.size() > 1) return send_error(*exchange, Code::kInvalidArgument, "tenant: several tenants have a session of this name");
      send_json(*exchange, session_json(sessions[0]));
    });
  }));
}

void Admin::end_session(const std::string& tenant, const std::string& id, const ExchangePtr& exchange) {
  hint::Hints hints;
  hints.dialect = "native";
  hints.manage_request = true;
  hint::Action action;
  action.verb = hint::Verb::kEnd;
  action.identity.session_id = id;
  hints.identity = action.identity;
  hints.actions.push_back(std::move(action));
  check(*exchange, service_.manage(tenant, std::move(hints), [exchange](std::vector<hint::Receipt> receipts) {
    exchange->post([exchange, receipts = std::move(receipts)] { send_json(*exchange, AdminJson(hint::hint_result_json(receipts, {}))); });
  }));
}

}  // namespace kvtide::server
