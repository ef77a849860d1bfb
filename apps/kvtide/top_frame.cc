#include "apps/kvtide/top_frame.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <utility>
#include <vector>

#include "apps/kvtide/json_read.h"
#include "apps/kvtide/sizes.h"

namespace kvtide::app {
namespace {

constexpr size_t kBarWidth = 30;
constexpr size_t kIdWidth = 28;

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::array<char, 512> line{};
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(line.data(), line.size(), pattern, arguments);
  va_end(arguments);
  return line.data();
}

/// Printable ASCII of `text`, cut to `width`: ids come from clients and must not move the cursor or change colours.
std::string plain(const std::string& text, size_t width) {
  std::string out;
  for (const char c : text) {
    if (out.size() == width) break;
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

std::string bar(double share) {
  const auto filled = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(kBarWidth) + 0.5);
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "]";
}

double tokens_per_second(const TopSnapshot& now, const TopSnapshot& before, const char* key) {
  if (now.at_s <= before.at_s) return 0;
  return static_cast<double>(int_of(member(now.stats, "tokens"), key) - int_of(member(before.stats, "tokens"), key)) /
         (now.at_s - before.at_s);
}

std::string duration(double seconds) {
  if (seconds < 0) return "now";
  if (seconds < 10) return format("%.1fs", seconds);
  if (seconds < 600) return format("%.0fs", seconds);
  return format("%.0fm", seconds / 60);
}

std::string request_lines(const TopSnapshot& now, const TopSnapshot* before) {
  const Json& requests = member(now.stats, "requests");
  const Json& tokens = member(now.stats, "tokens");
  const int64_t device = int_of(tokens, "reused_device"), host = int_of(tokens, "reused_host"), prompt = int_of(tokens, "prompt");
  const auto count = [&requests](const char* key) { return static_cast<long long>(int_of(requests, key)); };
  std::string out = format("requests  running %lld  waiting %lld  done %lld  failed %lld  cancelled %lld  refused %lld\n", count("running"),
                           count("waiting"), count("total"), count("failed"), count("cancelled"), count("rejected"));
  out += format("tokens    hit rate %.1f %% (device %lld, host %lld of %lld)",
                prompt == 0 ? 0.0 : 100.0 * static_cast<double>(device + host) / static_cast<double>(prompt),
                static_cast<long long>(device), static_cast<long long>(host), static_cast<long long>(prompt));
  if (before != nullptr) {
    out += format("  prompts %.0f/s  replies %.0f/s", tokens_per_second(now, *before, "recomputed"),
                  tokens_per_second(now, *before, "generated"));
  }
  return out + "\n";
}

/// How many more (or, negative, fewer) prompt tokens of the last hour others would have reused, in percent of all.
std::string regret_line(const std::string& name, const Json& hour) {
  const int64_t prompt = int_of(hour, "prompt");
  if (prompt == 0) return "";
  const auto share = [&](int64_t tokens) { return 100 * static_cast<double>(tokens) / static_cast<double>(prompt); };
  const int64_t reused = int_of(hour, "reused");
  const auto beside = [&](const char* rival) { return share(int_of(member(hour, "hits"), rival) - reused); };
  return format("%-17s hit %5.1f %%  lru at 0.5x %+5.1f  1x %+5.1f  2x %+5.1f  optimal %+5.1f  first seen %4.1f\n", plain(name, 17).c_str(),
                share(reused), beside("lru_half"), beside("lru"), beside("lru_double"), beside("optimal"), share(int_of(hour, "compulsory")));
}

std::string regret_lines(const TopSnapshot& now) {
  constexpr size_t kTenants = 3;
  const Json& regret = member(now.stats, "regret");
  std::string out = regret_line("regret last hour", member(member(regret, "all"), "last_hour"));
  const Json& tenants = list_of(regret, "tenants");
  if (tenants.size() < 2) return out;
  // Those that asked for most.
  std::vector<std::pair<int64_t, const Json*>> busiest;
  for (const Json& tenant : tenants) busiest.emplace_back(int_of(member(tenant, "last_hour"), "prompt"), &tenant);
  std::stable_sort(busiest.begin(), busiest.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  if (busiest.size() > kTenants) busiest.resize(kTenants);
  for (const auto& [prompt, tenant] : busiest) out += regret_line("  " + text_of(*tenant, "tenant"), member(*tenant, "last_hour"));
  return out;
}

std::string tier_lines(const TopSnapshot& now) {
  std::string out;
  for (const Json& tier : list_of(now.tiers, "tiers")) {
    const int64_t budget = int_of(tier, "budget_bytes"), used = int_of(tier, "used_bytes");
    const double share = budget == 0 ? 0 : static_cast<double>(used) / static_cast<double>(budget);
    out += format("%-9s %s %5.1f %%  %s of %s, peak %s, %lld blocks, %lld leases\n", plain(text_of(tier, "name"), 9).c_str(),
                  bar(share).c_str(), 100 * share, format_bytes(used).c_str(), format_bytes(budget).c_str(),
                  format_bytes(int_of(tier, "peak_bytes")).c_str(), static_cast<long long>(int_of(tier, "blocks")),
                  static_cast<long long>(int_of(tier, "leases")));
  }
  return out;
}

std::string cut_to_width(const std::string& frame, size_t width) {
  std::string out;
  size_t column = 0;
  for (const char c : frame) {
    if (c == '\n')
      column = 0;
    else if (++column > width)
      continue;
    out += c;
  }
  return out;
}

}  // namespace

std::string session_table(const Json& sessions, size_t rows) {
  std::string out = format("%-*s %-13s %6s %8s %8s %8s %8s %10s\n", static_cast<int>(kIdWidth), "session", "state", "turns", "tokens",
                           "device", "host", "idle", "next use");
  for (const Json& s : sessions) {
    if (rows-- == 0) break;
    const Json& next = member(s, "predicted_next_use_s");
    std::string id = text_of(s, "session_id");
    if (const Json& derived = member(s, "derived"); derived.is_boolean() && derived.get<bool>()) id = "~" + id;
    out += format("%-*s %-13s %6lld %8lld %8lld %8lld %8s %10s\n", static_cast<int>(kIdWidth), plain(id, kIdWidth).c_str(),
                  plain(text_of(s, "state"), 13).c_str(), static_cast<long long>(int_of(s, "turns")),
                  static_cast<long long>(int_of(s, "prompt_tokens")), static_cast<long long>(int_of(member(s, "blocks"), "device")),
                  static_cast<long long>(int_of(member(s, "blocks"), "host")), duration(number_of(s, "idle_s")).c_str(),
                  next.is_number() ? duration(next.get<double>()).c_str() : "-");
  }
  return out;
}

std::string top_frame(const TopSnapshot& now, const TopSnapshot* before, size_t width, size_t session_rows) {
  const Json& sessions = list_of(now.sessions, "sessions");
  const int64_t total = int_of(now.sessions, "total", static_cast<int64_t>(sessions.size()));
  std::string out = "kvtide top  " + plain(now.url, 60) + "\n\n" + tier_lines(now) + "\n" + request_lines(now, before) + regret_lines(now);
  out += format("sessions  %lld\n\n", static_cast<long long>(total));
  out += session_table(sessions, session_rows);
  return cut_to_width(out, width);
}

}  // namespace kvtide::app
