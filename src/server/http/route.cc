#include "server/http/route.h"

#include <array>
#include <vector>

namespace kvtide::server {
namespace {

struct Route {
  Method method;
  std::string_view path;  // "{id}" stands for one segment
  Endpoint endpoint;
  Access access;
};

constexpr std::array kRoutes{
    Route{Method::kGet, "/health", Endpoint::kHealth, Access::kOpen},
    Route{Method::kGet, "/metrics", Endpoint::kMetrics, Access::kAdmin},
    Route{Method::kGet, "/v1/models", Endpoint::kModels, Access::kTenant},
    Route{Method::kGet, "/v1/models/{id}", Endpoint::kModel, Access::kTenant},
    Route{Method::kPost, "/v1/chat/completions", Endpoint::kChat, Access::kTenant},
    Route{Method::kPost, "/v1/completions", Endpoint::kCompletions, Access::kTenant},
    // The same without /v1, for clients whose base address lacks it.
    Route{Method::kGet, "/models", Endpoint::kModels, Access::kTenant},
    Route{Method::kPost, "/chat/completions", Endpoint::kChat, Access::kTenant},
    Route{Method::kPost, "/completions", Endpoint::kCompletions, Access::kTenant},
    Route{Method::kGet, "/kv/v1/capabilities", Endpoint::kCapabilities, Access::kAdmin},
    Route{Method::kPost, "/kv/v1/hints", Endpoint::kHintPost, Access::kTenantOrAdmin},
    Route{Method::kGet, "/kv/v1/hints/{id}", Endpoint::kHintGet, Access::kTenantOrAdmin},
    Route{Method::kGet, "/kv/v1/sessions", Endpoint::kSessionList, Access::kAdmin},
    Route{Method::kGet, "/kv/v1/sessions/{id}", Endpoint::kSessionGet, Access::kAdmin},
    Route{Method::kDelete, "/kv/v1/sessions/{id}", Endpoint::kSessionDelete, Access::kAdmin},
    Route{Method::kGet, "/kv/v1/tiers", Endpoint::kTiers, Access::kAdmin},
    Route{Method::kGet, "/kv/v1/stats", Endpoint::kStats, Access::kAdmin},
};

std::string_view method_name(Method method) {
  switch (method) {
    case Method::kGet: return "GET";
    case Method::kPost: return "POST";
    case Method::kDelete: return "DELETE";
    default: return "";
  }
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// The segment that "{id}" stands for (empty for a pattern without one), or nullopt when the path does not fit.
std::optional<std::string_view> fit(std::string_view pattern, std::string_view path) {
  const size_t brace = pattern.find('{');
  if (brace == std::string_view::npos) return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  if (!path.starts_with(pattern.substr(0, brace))) return std::nullopt;
  const std::string_view id = path.substr(brace);
  if (id.empty() || id.find('/') != std::string_view::npos) return std::nullopt;
  return id;
}

std::map<std::string, std::string> decode_query(std::string_view text) {
  std::map<std::string, std::string> query;
  while (!text.empty()) {
    const size_t end = std::min(text.find('&'), text.size());
    const std::string_view pair = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    auto name = percent_decode(pair.substr(0, equals), true);
    auto value = percent_decode(equals < pair.size() ? pair.substr(equals + 1) : std::string_view(), true);
    if (name && value && !name->empty()) query.emplace(std::move(*name), std::move(*value));
  }
  return query;
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_space) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

Routing route(Method method, std::string_view target) {
  Routing routing;
  const size_t mark = std::min(target.find_first_of("?#"), target.size());
  std::string_view path = target.substr(0, mark);
  std::string_view query = mark < target.size() && target[mark] == '?' ? target.substr(mark + 1) : std::string_view();
  query = query.substr(0, query.find('#'));
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const Method wanted = method == Method::kHead ? Method::kGet : method;

  for (const Route& entry : kRoutes) {
    const auto id_text = fit(entry.path, path);
    if (!id_text) continue;
    auto id = percent_decode(*id_text, false);
    if (!id) continue;
    if (!routing.allow.empty()) routing.allow += ", ";
    routing.allow += method_name(entry.method);
    if (entry.method == Method::kGet) routing.allow += ", HEAD";
    if (entry.method == wanted) routing.match = Match{entry.endpoint, entry.access, std::move(*id), decode_query(query)};
  }
  if (!routing.allow.empty()) routing.allow += ", OPTIONS";
  return routing;
}

}  // namespace kvtide::server
