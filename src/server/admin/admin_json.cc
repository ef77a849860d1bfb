#include "server/admin/admin_json.h"

namespace kvtide::server {

AdminJson capabilities_json(const engine::EngineInfo& info, const engine::TextModel& text_model, const ServerFacts& facts) {
  AdminJson engine;
  engine["name"] = info.engine;
  engine["version"] = info.engine_version;
  engine["layout"] = info.layout == engine::Layout::kUnified ? "unified" : "lanes";
  engine["seqs"] = info.seqs;
  engine["block_tokens"] = info.block_tokens;
  engine["device_tokens"] = info.device_tokens;
  engine["seq_tokens_max"] = info.seq_tokens_max;
  engine["batch_tokens_max"] = info.batch_tokens_max;
  engine["block_bytes"] = info.block_bytes;
  engine["token_bytes"] = info.token_bytes;
  AdminJson model;
  model["name"] = info.model_name;
  model["description"] = info.model_description;
  model["fingerprint"] = base::hex(info.fingerprint);
  model["context_train_tokens"] = info.context_train_tokens;
  model["vocab_tokens"] = info.vocab_tokens;
  model["template"] = AdminJson::object();
  for (const auto& [name, can] : text_model.capabilities()) model["template"][name] = can;
  AdminJson reuse;
  reuse["on"] = info.reuse;
  reuse["off_reason"] = info.reuse ? AdminJson() : AdminJson(info.reuse_off_reason);
  AdminJson hints;
  hints["on"] = facts.hints;
  hints["dialects"] = facts.dialects;
  hints["verbs"] = facts.verbs;
  AdminJson out;
  out["version"] = facts.version;
  out["policy"] = facts.policy;
  out["engine"] = std::move(engine);
  out["model"] = std::move(model);
  out["reuse"] = std::move(reuse);
  out["hints"] = std::move(hints);
  return out;
}

AdminJson session_json(const serving::SessionSnapshot& session) {
  AdminJson out;
  out["tenant"] = session.tenant;
  out["session_id"] = session.session_id;
  out["parent_id"] = session.parent_id.empty() ? AdminJson() : AdminJson(session.parent_id);
  out["children"] = session.children;
  out["derived"] = session.derived;
  out["generation"] = session.generation;
  out["state"] = session.state;
  out["branches"] = session.branches;
  out["turns"] = session.turns;
  out["prompt_tokens"] = session.prompt_tokens;
  out["blocks"] = {{"device", session.blocks_device}, {"host", session.blocks_host}, {"claimed", session.blocks_claimed}};
  out["prompt_tokens_total"] = session.prompt_tokens_total;
  out["reused_tokens_total"] = session.reused_tokens_total;
  out["idle_s"] = session.idle_s;
  out["predicted_next_use_s"] = session.predicted_next_use_s ? AdminJson(*session.predicted_next_use_s) : AdminJson();
  return out;
}

AdminJson tiers_json(std::span<const serving::TierSnapshot> tiers) {
  AdminJson list = AdminJson::array();
  for (const serving::TierSnapshot& tier : tiers) {
    AdminJson one;
    one["name"] = tier.name;
    one["budget_bytes"] = tier.budget_bytes;
    one["used_bytes"] = tier.used_bytes;
    one["peak_bytes"] = tier.peak_bytes;
    one["blocks"] = tier.blocks;
    one["leases"] = tier.leases;
    one["corrupt_loads"] = tier.corrupt_loads;
    list.push_back(std::move(one));
  }
  return {{"tiers", std::move(list)}};
}

namespace {

AdminJson regret_json(const policy::Regret& regret) {
  AdminJson hits;
  for (const policy::Rival rival : policy::kRivals) hits[std::string(policy::rival_name(rival))] = regret.hits(rival);
  return {{"prompt", regret.prompt}, {"reused", regret.reused}, {"compulsory", regret.compulsory}, {"hits", std::move(hits)}};
}

AdminJson regret_report_json(const policy::RegretReport& report) {
  const auto row = [](const policy::TenantRegret& one) {
    return AdminJson{{"total", regret_json(one.total)}, {"last_hour", regret_json(one.last_hour)}};
  };
  AdminJson out;
  out["capacity_blocks"] = report.capacity_blocks;
  out["sampled_share"] = report.rate;
  out["tracked_blocks"] = report.tracked_blocks;
  out["all"] = row(report.all);
  out["tenants"] = AdminJson::array();
  for (const policy::TenantRegret& one : report.tenants) {
    AdminJson tenant{{"tenant", one.tenant}};
    tenant.update(row(one));
    out["tenants"].push_back(std::move(tenant));
  }
  return out;
}

}  // namespace

AdminJson stats_json(const serving::ServiceStats& stats) {
  AdminJson out;
  out["requests"] = {{"total", stats.requests_total},       {"failed", stats.requests_failed},   {"cancelled", stats.requests_cancelled},
                     {"rejected", stats.requests_rejected}, {"running", stats.requests_running}, {"waiting", stats.requests_waiting}};
  out["tokens"] = {{"prompt", stats.prompt_tokens},           {"reused_device", stats.reused_device_tokens},
                   {"reused_host", stats.reused_host_tokens}, {"recomputed", stats.recomputed_tokens},
                   {"compulsory", stats.compulsory_tokens},   {"generated", stats.generated_tokens}};
  out["engine"] = {{"seqs_used", stats.seqs_used}, {"seqs", stats.seqs}, {"cells_used", stats.cells_used}};
  out["sessions"] = stats.sessions;
  out["blocks"] = stats.blocks;
  out["leases"] = stats.leases;
  out["copies"] = {{"blocks_out", stats.blocks_copied_out}, {"blocks_in", stats.blocks_copied_in},
                   {"bytes_out", stats.bytes_copied_out},   {"bytes_in", stats.bytes_copied_in},
                   {"stall_ns_max", stats.copy_stall_ns_max}};
  out["evicted_blocks"] = {{"device", stats.evicted_device_blocks}, {"host", stats.evicted_host_blocks}};
  out["preemptions"] = stats.preemptions;
  out["byte_mismatches"] = stats.byte_mismatches;
  out["core_ns"] = stats.core_ns;
  out["loop_ns"] = stats.loop_ns;
  out["shadow_ns"] = stats.shadow_ns;
  out["regret"] = regret_report_json(stats.regret);
  AdminJson hints = AdminJson::object();
  for (const auto& [name, count] : stats.hints) hints[name] = count;
  out["hints"] = std::move(hints);
  return out;
}

}  // namespace kvtide::server
