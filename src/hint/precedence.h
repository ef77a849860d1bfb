// Everything a chat request says about its session, whichever dialects it uses.
//
// `agent_hint` goes before headers. One source supplies the identity, session and parent together: headers count only when
// the hint names no session, and then the hint's actions are about the session of the headers. A request without hints costs one look-up
// in the body and a scan of the headers.
//
// Threading: thread-safe. Errors: none; problems are in the result, and nothing throws.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "hint/hint.h"
#include "hint/session_headers.h"

namespace kvtide::hint {

Hints decode_body(const nlohmann::json& body, std::span<const Header> headers);

}  // namespace kvtide::hint
