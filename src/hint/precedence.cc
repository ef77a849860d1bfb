#include "hint/precedence.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "hint/agent_hint.h"
#include "hint/field_reader.h"

namespace kvtide::hint {

Hints decode_body(const nlohmann::json& body, std::span<const Header> headers) {
  Hints in_headers = decode_session_headers(headers);
  Hints in_body = decode_agent_hint(body, in_headers.identity);
  const bool headers_speak = in_body.identity == in_headers.identity;
  if (in_body.dialect == "none") {
    for (Problem& problem : in_body.problems) add_problem(in_headers.problems, std::move(problem.field), std::move(problem.message));
    return in_headers;
  }
  if (headers_speak) {
    for (Problem& problem : in_headers.problems) add_problem(in_body.problems, std::move(problem.field), std::move(problem.message));
    for (Action& action : in_headers.actions) {
      if (in_body.actions.size() < kActionsMax) in_body.actions.push_back(std::move(action));
    }
  }
  return in_body;
}

}  // namespace kvtide::hint
