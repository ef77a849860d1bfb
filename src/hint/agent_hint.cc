#include "hint/agent_hint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "hint/field_reader.h"

namespace kvtide::hint {
namespace {

using nlohmann::json;

bool is_seed(const FieldReader& hint) {
  for (const char* name : {"parent_session_id", "cache_control", "context_management", "session_control", "turn_num"}) {
    if (hint.has(name)) return false;
  }
  return hint.has("action") || hint.has("parent_task_id");
}

bool nothing_to_infer(const json& body) {
  const auto messages = body.find("messages");
  if (messages != body.end() && !messages->is_null() && !(messages->is_array() && messages->empty())) return false;
  const auto prompt = body.find("prompt");
  return prompt == body.end() || prompt->is_null();
}

std::optional<Verb> command(std::string_view word) {
  const std::optional<Verb> verb = parse_verb(word);
  if (verb == Verb::kOffload || verb == Verb::kPrefetch || verb == Verb::kEvict) return verb;
  return std::nullopt;
}

/// The verb in field `name`; nothing, and a Problem unless the field is absent, when it names none.
std::optional<Verb> read_command(FieldReader& in, const char* name) {
  const Field<std::string_view> word = in.word(name);
  if (!word.value) return std::nullopt;
  const std::optional<Verb> verb = command(*word.value);
  if (!verb) in.problem(name, "must be offload, prefetch or evict");
  return verb;
}

std::optional<Action> read_edit(FieldReader& edit) {
  Action action;
  if (!edit.has("type")) {
    edit.problem("type", "missing");
    return std::nullopt;
  }
  const std::optional<Verb> verb = read_command(edit, "type");
  if (!verb) return std::nullopt;
  action.verb = *verb;

  const Field<std::string_view> target = edit.word("target");
  const Field<Range> indices = edit.range("start", "end");
  const Field<Range> blocks = edit.range("block_start", "block_end");
  if (target.bad || indices.bad || blocks.bad) return std::nullopt;
  const bool ranged = indices.value->given() || blocks.value->given();

  if (target.value) {
    const std::optional<Target> named = parse_target(*target.value);
    if (named != Target::kSession && named != Target::kMessages && named != Target::kTools) {
      edit.problem("target", "must be session, messages or tools");
      return std::nullopt;
    }
    action.target = *named;
    if (named == Target::kSession && ranged) {
      edit.problem("target", "session takes no range");
      return std::nullopt;
    }
  } else {
    action.target = ranged ? Target::kMessages : Target::kSession;  // neither given: the whole context
  }
  if (!ranged) return action;
  // Gateways add block ranges that they worked out from the message range; the client's own words win.
  if (!indices.value->given()) action.target = Target::kBlocks;
  const Range& range = indices.value->given() ? *indices.value : *blocks.value;
  action.start = range.start;
  action.end = range.end;
  return action;
}

std::optional<Action> read_cache_control(FieldReader& hint) {
  std::optional<FieldReader> control = hint.child("cache_control");
  if (!control) return std::nullopt;
  const Field<std::string_view> type = control->word("type");
  if (type.bad) return std::nullopt;
  if (type.value && *type.value != "ephemeral") {
    control->problem("type", "must be ephemeral");
    return std::nullopt;
  }
  Action action;
  action.verb = Verb::kRetain;
  action.ttl_ns = control->duration("ttl", base::kSecond, kTtlMaxNs).value.value_or(kTtlDefaultNs);

  const Field<int64_t> messages = control->count("msg_offset", 1);
  const Field<int64_t> tokens = control->count("token_offset", 1);
  const Field<int64_t> last_block = control->count("block_offset", 0);
  if (messages.bad || tokens.bad || last_block.bad) return std::nullopt;
  if (messages.value) {
    action.target = Target::kMessages;
    action.end = messages.value;
  } else if (tokens.value) {
    action.target = Target::kTokens;
    action.end = tokens.value;
  } else if (last_block.value) {
    action.target = Target::kBlocks;
    action.end = *last_block.value + 1;
  }
  if (action.end) action.start = 0;
  return action;
}

std::optional<Action> read_session_control(FieldReader& hint) {
  std::optional<FieldReader> control = hint.child("session_control");
  if (!control) return std::nullopt;
  const Field<std::string_view> type = control->word("type");
  if (type.bad) return std::nullopt;
  const std::string_view word = type.value.value_or("");
  Action action;
  if (word == "start" || word == "resume") {
    action.verb = Verb::kResume;
  } else if (word == "pause") {
    action.verb = Verb::kPause;
  } else if (word == "stop") {
    action.verb = Verb::kEnd;
  } else {
    if (word != "compact") control->problem("type", "must be start, pause, stop, compact or resume");
    return std::nullopt;
  }
  return action;
}

void read_edits(FieldReader& management, size_t room, std::vector<Action>& actions, std::vector<Problem>& problems) {
  const json* edits = management.list("edits");
  if (edits == nullptr) return;
  const std::string path = management.path_of("edits");
  for (size_t i = 0; i < std::min(edits->size(), room); ++i) {
    std::optional<FieldReader> edit = FieldReader::open((*edits)[i], path + "[" + std::to_string(i) + "]", problems);
    if (!edit) continue;
    if (std::optional<Action> action = read_edit(*edit)) actions.push_back(std::move(*action));
  }
  if (edits->size() > room) {
    management.problem("edits", "a message has room for " + std::to_string(kActionsMax) + " actions; later edits are ignored");
  }
}

/// All actions in the order they are to run, without identity.
void read_actions(FieldReader& hint, const json& body, Hints& out) {
  std::optional<FieldReader> management = hint.child("context_management");
  const bool asks = hint.has("action") || hint.has("session_control") || (management && management->has("edits"));
  std::optional<bool> stated;
  if (management) stated = management->flag("manage_request").value;
  out.manage_request = stated.value_or(asks && nothing_to_infer(body));

  const std::optional<Action> fact = read_session_control(hint);
  const bool ends = fact && fact->verb == Verb::kEnd;
  if (fact && !ends) out.actions.push_back(*fact);
  if (std::optional<Action> retain = read_cache_control(hint)) out.actions.push_back(*retain);
  if (const std::optional<Verb> verb = read_command(hint, "action")) out.actions.emplace_back().verb = *verb;
  if (management) read_edits(*management, kActionsMax - out.actions.size() - (ends ? 1 : 0), out.actions, out.problems);
  if (ends) out.actions.push_back(*fact);
}

}  // namespace

Hints decode_agent_hint(const json& body, const Identity& elsewhere) {
  Hints out;
  out.dialect = "none";
  out.identity = elsewhere;
  if (!body.is_object()) return out;
  const auto field = body.find("agent_hint");
  if (field == body.end() || field->is_null()) return out;
  std::optional<FieldReader> hint = FieldReader::open(*field, "agent_hint", out.problems);
  if (!hint) return out;
  out.dialect = is_seed(*hint) ? "seed" : "rfc52113";

  Who who = read_identity(*hint, "session_id", {"parent_session_id", "parent_task_id"});
  if (!who.identity.session_id.empty()) out.identity = std::move(who.identity);
  out.turn_number = hint->count("turn_num", 1).value;
  read_actions(*hint, body, out);

  // An id that cannot be used named some session, and the actions were meant for no other.
  if (!out.actions.empty() && (who.bad_session || out.identity.session_id.empty())) {
    hint->problem("session_id", "the actions are dropped: no usable session");
    out.actions.clear();
  }
  for (Action& action : out.actions) action.identity = out.identity;
  return out;
}

}  // namespace kvtide::hint
