#include "hint/native.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "hint/field_reader.h"

namespace kvtide::hint {
namespace {

using nlohmann::json;

constexpr base::DurationNs kForecastMaxNs = 24 * 3600 * base::kSecond;

bool takes_range(Verb verb) { return verb == Verb::kOffload || verb == Verb::kPrefetch || verb == Verb::kEvict || verb == Verb::kRetain; }

/// Whether target and range are usable; fills them in.
bool read_target(FieldReader& hint, Action& action) {
  const Field<std::string_view> target = hint.word("target");
  const Field<Range> range = hint.range("start", "end");
  if (target.bad || range.bad) return false;
  if (target.value) {
    const std::optional<Target> named = parse_target(*target.value);
    if (!named) {
      hint.problem("target", "must be session, messages, tools, tokens or blocks");
      return false;
    }
    action.target = *named;
  } else if (range.value->given()) {
    hint.problem("target", "missing: a range needs one");
    return false;
  }
  if (action.target == Target::kSession && range.value->given()) {
    hint.problem("target", "session takes no range");
    return false;
  }
  if (action.target != Target::kSession && !takes_range(action.verb)) {
    hint.problem("target", "this verb is about the whole session");
    return false;
  }
  action.start = range.value->start;
  action.end = range.value->end;
  return true;
}

/// Fields that tune. Given to a verb that has no use for them they are reported, so that nobody believes they did something.
void read_tuning(FieldReader& hint, Action& action) {
  const Field<base::DurationNs> ttl = hint.duration("ttl_s", base::kSecond, kTtlMaxNs);
  const Field<base::DurationNs> expected = hint.duration("expected_ms", base::kMillisecond, kForecastMaxNs);
  const Field<base::DurationNs> deadline = hint.duration("deadline_ms", base::kMillisecond, kForecastMaxNs);
  Field<std::string> tool = hint.id("tool", kToolBytesMax);
  if (action.verb == Verb::kRetain) {
    action.ttl_ns = ttl.value.value_or(kTtlDefaultNs);
  } else if (ttl.value) {
    hint.problem("ttl_s", "ignored: only for retain");
  }
  if (action.verb == Verb::kPause) {
    action.expected_ns = expected.value;
    if (tool.value) action.tool = std::move(*tool.value);
  } else {
    if (expected.value) hint.problem("expected_ms", "ignored: only for pause");
    if (tool.value) hint.problem("tool", "ignored: only for pause");
  }
  if (action.verb == Verb::kPrefetch) {
    action.expected_ns = deadline.value;
  } else if (deadline.value) {
    hint.problem("deadline_ms", "ignored: only for prefetch");
  }
}

std::optional<Action> read_hint(FieldReader& hint) {
  Action action;
  const Field<std::string_view> word = hint.word("verb");
  const std::optional<Verb> verb = word.value ? parse_verb(*word.value) : std::nullopt;
  if (!verb) {
    if (!word.bad) hint.problem("verb", word.value ? "must be offload, prefetch, evict, retain, end, pause or resume" : "missing");
    return std::nullopt;
  }
  action.verb = *verb;

  Who who = read_identity(hint, "session_id", {"parent_session_id"});
  if (who.identity.session_id.empty()) {
    if (!who.bad_session) hint.problem("session_id", "missing");
    return std::nullopt;
  }
  action.identity = std::move(who.identity);

  Field<std::string> hint_id = hint.id("hint_id", kHintIdBytesMax);
  if (hint_id.bad || !read_target(hint, action)) return std::nullopt;
  if (hint_id.value) action.hint_id = std::move(*hint_id.value);
  read_tuning(hint, action);
  return action;
}

void read_list(const json& list, const std::string& path, Hints& out) {
  for (size_t i = 0; i < std::min(list.size(), kActionsMax); ++i) {
    std::optional<FieldReader> hint = FieldReader::open(list[i], path + "[" + std::to_string(i) + "]", out.problems);
    if (!hint) continue;
    if (std::optional<Action> action = read_hint(*hint)) out.actions.push_back(std::move(*action));
  }
  if (list.size() > kActionsMax) {
    add_problem(out.problems, path, "a message has room for " + std::to_string(kActionsMax) + " hints; later ones are ignored");
  }
}

}  // namespace

base::Result<Hints> decode_native(const json& message) {
  Hints out;
  out.dialect = "native";
  out.manage_request = true;
  if (message.is_array()) {
    read_list(message, "hints", out);
    return out;
  }
  std::optional<FieldReader> envelope = FieldReader::open(message, "", out.problems);
  if (!envelope) return base::error(base::Code::kInvalidArgument, "a hint message is an object or a list of hints");
  if (message.contains("hints")) {
    const auto& list = message["hints"];
    if (!list.is_array()) return base::error(base::Code::kInvalidArgument, "hints: must be a list");
    read_list(list, "hints", out);
    return out;
  }
  if (std::optional<Action> action = read_hint(*envelope)) {
    out.actions.push_back(std::move(*action));
    return out;
  }
  return base::error(base::Code::kInvalidArgument, out.problems.front().field + ": " + out.problems.front().message);
}

}  // namespace kvtide::hint
