// Who speaks, from request headers that agents and gateways already send.
//
//   dynamo       X-Dynamo-Session-ID, X-Dynamo-Parent-Session-ID, X-Dynamo-Session-Final (true: the session ends after this request)
//   claude_code  x-claude-code-session-id, -agent-id, -parent-agent-id
//   opencode     x-session-id, x-parent-session-id
//   codex        session-id
//
// The first of these, in this order, that names a usable session supplies everything; the others are not looked at. Claude Code runs its
// sub-agents under the id of the main session: they become "<session>/<agent>", children of the agent that started them.
//
// Threading: thread-safe. Errors: none; an unusable value is a Problem. Cost: O(headers).
#pragma once

#include <span>
#include <string_view>

#include "hint/hint.h"

namespace kvtide::hint {

/// Names are compared without case; of repeated headers the first counts.
struct Header {
  std::string_view name;
  std::string_view value;
};

Hints decode_session_headers(std::span<const Header> headers);

}  // namespace kvtide::hint
