// Prometheus text, written by hand: the format is a few lines, and a client library would bring its own registry and threads.
#include <array>
#include <string_view>

#include "server/admin/admin_json.h"

namespace kvtide::server {
namespace {

using serving::ServiceStats;
using serving::TierSnapshot;

struct Family {
  std::string_view name;
  std::string_view help;
  std::string_view labels;  // "" or like {tier="host"}
  int64_t ServiceStats::*value;
};

// Members of one family stand together, as the format demands.
constexpr std::array kCounters{
    Family{"kvtide_requests_total", "Requests submitted.", "", &ServiceStats::requests_total},
    Family{"kvtide_requests_failed_total", "Requests that ended with an error.", "", &ServiceStats::requests_failed},
    Family{"kvtide_requests_cancelled_total", "Requests given up by their clients.", "", &ServiceStats::requests_cancelled},
    Family{"kvtide_requests_rejected_total", "Requests refused because a limit was reached.", "", &ServiceStats::requests_rejected},
    Family{"kvtide_prompt_tokens_total", "Prompt tokens of finished requests.", "", &ServiceStats::prompt_tokens},
    Family{"kvtide_reused_tokens_total", "Prompt tokens whose KV was reused.", "{tier=\"device\"}", &ServiceStats::reused_device_tokens},
    Family{"kvtide_reused_tokens_total", "", "{tier=\"host\"}", &ServiceStats::reused_host_tokens},
    Family{"kvtide_recomputed_tokens_total", "Prompt tokens that were computed.", "", &ServiceStats::recomputed_tokens},
    Family{"kvtide_compulsory_tokens_total", "Computed prompt tokens never seen before.", "", &ServiceStats::compulsory_tokens},
    Family{"kvtide_generated_tokens_total", "Tokens generated.", "", &ServiceStats::generated_tokens},
    Family{"kvtide_copied_blocks_total", "Blocks copied between tiers.", "{direction=\"out\"}", &ServiceStats::blocks_copied_out},
    Family{"kvtide_copied_blocks_total", "", "{direction=\"in\"}", &ServiceStats::blocks_copied_in},
    Family{"kvtide_copied_bytes_total", "Bytes copied between tiers.", "{direction=\"out\"}", &ServiceStats::bytes_copied_out},
    Family{"kvtide_copied_bytes_total", "", "{direction=\"in\"}", &ServiceStats::bytes_copied_in},
    Family{"kvtide_evicted_blocks_total", "Copies dropped for room.", "{tier=\"device\"}", &ServiceStats::evicted_device_blocks},
    Family{"kvtide_evicted_blocks_total", "", "{tier=\"host\"}", &ServiceStats::evicted_host_blocks},
    Family{"kvtide_preemptions_total", "Running requests put back for room.", "", &ServiceStats::preemptions},
    Family{"kvtide_byte_mismatches_total", "Stored blocks that no longer matched their checksum; each was refused and recomputed.", "", &ServiceStats::byte_mismatches},
    Family{"kvtide_core_nanoseconds_total", "CPU time of the session manager.", "", &ServiceStats::core_ns},
    Family{"kvtide_loop_nanoseconds_total", "Busy time of the loop.", "", &ServiceStats::loop_ns},
    Family{"kvtide_shadow_nanoseconds_total", "CPU time of the shadow that measures regret.", "", &ServiceStats::shadow_ns},
};

constexpr std::array kGauges{
    Family{"kvtide_requests_running", "Requests being computed.", "", &ServiceStats::requests_running},
    Family{"kvtide_requests_waiting", "Requests in the queue.", "", &ServiceStats::requests_waiting},
    Family{"kvtide_sequences_used", "Engine sequences in use.", "", &ServiceStats::seqs_used},
    Family{"kvtide_sequences", "Engine sequences in all.", "", &ServiceStats::seqs},
    Family{"kvtide_cells_used", "KV cells in use.", "", &ServiceStats::cells_used},
    Family{"kvtide_sessions", "Sessions known.", "", &ServiceStats::sessions},
    Family{"kvtide_blocks", "Blocks known.", "", &ServiceStats::blocks},
    Family{"kvtide_leases", "Copies protected now.", "", &ServiceStats::leases},
    Family{"kvtide_copy_stall_nanoseconds_max", "Longest pause of decoding caused by copies.", "", &ServiceStats::copy_stall_ns_max},
};

struct TierFamily {
  std::string_view name;
  std::string_view type;
  std::string_view help;
  int64_t TierSnapshot::*value;
};

constexpr std::array kTierFamilies{
    TierFamily{"kvtide_tier_budget_bytes", "gauge", "Bytes a tier may use.", &TierSnapshot::budget_bytes},
    TierFamily{"kvtide_tier_used_bytes", "gauge", "Bytes a tier uses.", &TierSnapshot::used_bytes},
    TierFamily{"kvtide_tier_peak_bytes", "gauge", "Most bytes a tier ever used.", &TierSnapshot::peak_bytes},
    TierFamily{"kvtide_tier_blocks", "gauge", "Copies in a tier.", &TierSnapshot::blocks},
    TierFamily{"kvtide_tier_leases", "gauge", "Copies of a tier protected now.", &TierSnapshot::leases},
    TierFamily{"kvtide_tier_corrupt_loads_total", "counter", "Loads refused by their checksum.", &TierSnapshot::corrupt_loads},
};

void add_head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
}

void add_line(std::string& out, std::string_view name, std::string_view labels, int64_t value) {
  out.append(name).append(labels).append(" ").append(std::to_string(value)).append("\n");
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out;
}

/// "dialect/verb/status" as three labels.
std::string hint_labels(std::string_view name) {
  std::string out = "{";
  for (const std::string_view label : {"dialect", "verb", "status"}) {
    const size_t end = std::min(name.find('/'), name.size());
    if (out.size() > 1) out += ",";
    out.append(label).append("=\"").append(escaped(name.substr(0, end))).append("\"");
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return out + "}";
}

void add_families(std::string& out, std::span<const Family> families, std::string_view type, const ServiceStats& stats) {
  std::string_view last;
  for (const Family& family : families) {
    if (family.name != last) add_head(out, family.name, type, family.help);
    add_line(out, family.name, family.labels, stats.*family.value);
    last = family.name;
  }
}

struct RegretFamily {
  std::string_view name;
  std::string_view help;
  int64_t policy::Regret::*value;
};

constexpr std::array kRegretFamilies{
    RegretFamily{"kvtide_shadow_prompt_tokens_total", "Prompt tokens that the shadow compared.", &policy::Regret::prompt},
    RegretFamily{"kvtide_shadow_reused_tokens_total", "Of those, really reused.", &policy::Regret::reused},
    RegretFamily{"kvtide_shadow_compulsory_tokens_total", "Of those, in no block seen lately (estimate).", &policy::Regret::compulsory},
};

struct RivalFamily {
  std::string_view name;
  std::string_view help;
  int64_t (policy::Regret::*value)(policy::Rival) const;
};

constexpr std::array kRivalFamilies{
    RivalFamily{"kvtide_regret_lost_tokens_total", "Tokens that another cache would have reused and this one did not (estimate).",
                &policy::Regret::lost_to},
    RivalFamily{"kvtide_regret_won_tokens_total", "Tokens that this cache reused and another one would not have (estimate).",
                &policy::Regret::won_over},
};

// By tenant; sum() gives all.
void add_regret(std::string& out, const policy::RegretReport& report) {
  for (const RegretFamily& family : kRegretFamilies) {
    add_head(out, family.name, "counter", family.help);
    for (const policy::TenantRegret& one : report.tenants) {
      add_line(out, family.name, "{tenant=\"" + escaped(one.tenant) + "\"}", one.total.*family.value);
    }
  }
  for (const RivalFamily& family : kRivalFamilies) {
    add_head(out, family.name, "counter", family.help);
    for (const policy::TenantRegret& one : report.tenants) {
      for (const policy::Rival rival : policy::kRivals) {
        const std::string labels = "{tenant=\"" + escaped(one.tenant) + "\",against=\"" + std::string(policy::rival_name(rival)) + "\"}";
        add_line(out, family.name, labels, (one.total.*family.value)(rival));
      }
    }
  }
}

}  // namespace

std::string metrics_text(const ServiceStats& stats, std::span<const TierSnapshot> tiers, size_t connections) {
  std::string out;
  add_families(out, kCounters, "counter", stats);
  add_families(out, kGauges, "gauge", stats);
  add_regret(out, stats.regret);
  add_head(out, "kvtide_http_connections", "gauge", "Open connections.");
  add_line(out, "kvtide_http_connections", "", static_cast<int64_t>(connections));
  for (const TierFamily& family : kTierFamilies) {
    add_head(out, family.name, family.type, family.help);
    for (const TierSnapshot& tier : tiers) add_line(out, family.name, "{tier=\"" + escaped(tier.name) + "\"}", tier.*family.value);
  }
  add_head(out, "kvtide_hints_total", "counter", "Hints by dialect, verb and outcome.");
  for (const auto& [name, count] : stats.hints) add_line(out, "kvtide_hints_total", hint_labels(name), count);
  return out;
}

}  // namespace kvtide::server
