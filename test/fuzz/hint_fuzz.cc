// Fuzzes every reader of hints with JSON, golden messages among it, and with header values.
//
// The oracle: nothing throws or crashes, every list and id stays within its limit, ids and problems are UTF-8, ranges are not empty,
// actions of a message without native form are about its speaker, and reading twice gives the same.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "hint/agent_hint.h"
#include "hint/native.h"
#include "hint/precedence.h"
#include "hint/receipt_json.h"
#include "hint/utf8.h"

namespace kvtide::hint {
namespace {

using nlohmann::json;

void check_id(const std::string& id, size_t bytes_max) { KV_CHECK(id.size() <= bytes_max && is_utf8(id)); }

void check_identity(const Identity& who) {
  check_id(who.session_id, kIdBytesMax);
  check_id(who.parent_id, kIdBytesMax);
  KV_CHECK(who.parent_id.empty() || (!who.session_id.empty() && who.parent_id != who.session_id));
}

void check_action(const Action& action) {
  KV_CHECK(!action.identity.session_id.empty());
  check_identity(action.identity);
  check_id(action.hint_id, kHintIdBytesMax);
  check_id(action.tool, kToolBytesMax);
  KV_CHECK(action.target != Target::kSession || (!action.start && !action.end));
  KV_CHECK(!action.start || *action.start >= 0);
  KV_CHECK(!action.end || *action.end > action.start.value_or(0));
  KV_CHECK((action.verb == Verb::kRetain) == action.ttl_ns.has_value());
  KV_CHECK(!action.ttl_ns || (*action.ttl_ns >= 0 && *action.ttl_ns <= 3600 * base::kSecond));
  KV_CHECK(!action.expected_ns || *action.expected_ns >= 0);
}

void check_hints(const Hints& hints) {
  KV_CHECK(!hints.dialect.empty());
  check_identity(hints.identity);
  KV_CHECK(hints.actions.size() <= kActionsMax && hints.problems.size() <= kProblemsMax);
  for (const Action& action : hints.actions) {
    check_action(action);
    KV_CHECK(hints.dialect == "native" || action.identity == hints.identity);
  }
  for (const Problem& problem : hints.problems) KV_CHECK(problem.field.size() < 256 && problem.message.size() < 256);
  (void)hint_result_json({}, hints.problems).dump();  // throws on text that is no UTF-8
}

void check_body(const json& body, std::span<const Header> headers) {
  const Hints alone = decode_agent_hint(body);
  check_hints(alone);
  KV_CHECK(alone == decode_agent_hint(body));
  const Hints all = decode_body(body, headers);
  check_hints(all);
  KV_CHECK(all == decode_body(body, headers));
}

void check_native(const json& message) {
  const base::Result<Hints> hints = decode_native(message);
  const base::Result<Hints> again = decode_native(message);
  KV_CHECK(hints.has_value() == again.has_value());
  if (!hints) return;
  check_hints(*hints);
  KV_CHECK(*hints == *again);
}

/// Headers made of the input's lines, each under a known name in turn.
std::vector<Header> headers_of(std::string_view text) {
  static constexpr std::array<std::string_view, 9> kNames = {"X-Dynamo-Session-ID",
                                                             "x-session-id",
                                                             "x-claude-code-session-id",
                                                             "X-Dynamo-Session-Final",
                                                             "X-Dynamo-Parent-Session-ID",
                                                             "x-claude-code-agent-id",
                                                             "x-parent-session-id",
                                                             "x-claude-code-parent-agent-id",
                                                             "session-id"};
  std::vector<Header> headers;
  for (std::string_view name : kNames) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    if (line_end > 0) headers.push_back({name, text.substr(0, line_end)});
    text.remove_prefix(std::min(line_end + 1, text.size()));
  }
  return headers;
}

void check_input(std::string_view text) {
  const std::vector<Header> headers = headers_of(text);
  check_hints(decode_session_headers(headers));
  const json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return;
  check_body(value, headers);
  check_native(value);
  check_body({{"messages", json::array()}, {"agent_hint", value}}, {});
  if (value.is_object() && value.contains("body")) {  // a golden message
    check_body(value["body"], headers);
    check_native(value["body"]);
  }
}

}  // namespace
}  // namespace kvtide::hint

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvtide::hint::check_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
