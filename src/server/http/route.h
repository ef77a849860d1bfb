// Which endpoint a method and a path mean: one table.
//
// Threading: free functions, thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace kvtide::server {

enum class Endpoint {
  kHealth, kMetrics, kModels, kModel, kChat, kCompletions,
  kCapabilities, kHintPost, kHintGet, kSessionList, kSessionGet, kSessionDelete, kTiers, kStats,
};

/// Whose key opens an endpoint. Where no key is configured everything is open.
enum class Access { kOpen, kTenant, kAdmin, kTenantOrAdmin };

struct Match {
  Endpoint endpoint;
  Access access;
  std::string id;                             // the {id} of the path, decoded; empty where the path has none
  std::map<std::string, std::string> query;   // decoded; of repeated names the first
};

struct Routing {
  std::optional<Match> match;
  std::string allow;  // methods of this path, for Allow; empty: no such path
};

Routing route(Method method, std::string_view target);

/// Percent-decoding; `plus_is_space` as in queries. nullopt for a broken escape.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);

}  // namespace kvtide::server
