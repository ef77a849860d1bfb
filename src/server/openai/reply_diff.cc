#include "server/openai/reply_diff.h"

#include <atomic>
#include <cstdio>
#include <random>

#include "base/random.h"

namespace kvtide::server {
namespace {

/// What `now` adds to `said`, or nothing when it does not extend it.
std::string_view added(const std::string& said, std::string_view now) {
  return now.starts_with(said) ? now.substr(said.size()) : std::string_view();
}

Json call_delta(size_t index, Json call) {
  Json entry;
  entry["index"] = index;
  entry.update(call);
  Json delta;
  delta["tool_calls"] = Json::array({std::move(entry)});
  return delta;
}

void add_text(std::string& said, const std::string& now, const char* name, std::vector<Json>& deltas) {
  const std::string_view more = added(said, now);
  if (more.empty()) return;
  Json delta;
  delta[name] = more;
  deltas.push_back(std::move(delta));
  said = now;
}

}  // namespace

std::string make_id(std::string_view prefix) {
  static const uint64_t start = std::random_device{}() * uint64_t{0x100000000} + std::random_device{}();
  static std::atomic<uint64_t> next{0};
  base::Random random(start + next.fetch_add(1));
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%08llx", static_cast<unsigned long long>(random.next()),
                static_cast<unsigned long long>(random.next() >> 32U));
  return std::string(prefix) + text;
}

std::vector<Json> ReplyDiff::advance(const engine::ParsedReply& now) {
  std::vector<Json> deltas;
  add_text(reasoning_, now.reasoning_content, "reasoning_content", deltas);
  add_text(content_, now.content, "content", deltas);
  for (size_t i = 0; i < now.tool_calls.size(); ++i) {
    const engine::ToolCall& call = now.tool_calls[i];
    if (i == calls_.size()) {
      if (call.name.empty()) break;  // calls are announced in order
      calls_.emplace_back();
      Json announced;
      announced["id"] = call.id.empty() ? make_id("call_") : call.id;
      announced["type"] = "function";
      announced["function"] = {{"name", call.name}, {"arguments", ""}};
      deltas.push_back(call_delta(i, std::move(announced)));
    }
    const std::string_view more = added(calls_[i].arguments, call.arguments);
    if (more.empty()) continue;
    Json grown;
    grown["function"] = {{"arguments", more}};
    deltas.push_back(call_delta(i, std::move(grown)));
    calls_[i].arguments = call.arguments;
  }
  return deltas;
}

std::vector<Json> ReplyDiff::finish_raw(const std::string& raw) {
  std::vector<Json> deltas;
  if (calls_.empty() && reasoning_.empty()) add_text(content_, raw, "content", deltas);
  return deltas;
}

}  // namespace kvtide::server
