// What the admin API answers, as JSON and as Prometheus text.
//
// Threading: free functions, thread-safe. Nothing here holds text of prompts or replies.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "serving/service.h"

namespace kvtide::server {

using AdminJson = nlohmann::ordered_json;

/// What this server says of itself beside what engine and model say.
struct ServerFacts {
  std::string version;
  std::string policy;                 // eviction policy, by name
  bool hints = true;
  std::vector<std::string> dialects;  // of hints
  std::vector<std::string> verbs;     // that do something
};

AdminJson capabilities_json(const engine::EngineInfo& info, const engine::TextModel& text_model, const ServerFacts& facts);
AdminJson session_json(const serving::SessionSnapshot& session);
AdminJson tiers_json(std::span<const serving::TierSnapshot> tiers);
AdminJson stats_json(const serving::ServiceStats& stats);

/// Text exposition format 0.0.4. `connections`: open now.
std::string metrics_text(const serving::ServiceStats& stats, std::span<const serving::TierSnapshot> tiers, size_t connections);

}  // namespace kvtide::server
