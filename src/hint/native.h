// The body of POST /kv/v1/hints: {"hints": [hint, ...]}, [hint, ...] or one bare hint, where a hint is
// {hint_id, session_id, parent_session_id, verb, target, start, end, ttl_s, expected_ms, deadline_ms, tool}.
//
// session_id and verb are required. Fields that say which hint, session or range must be right or that hint is dropped; the others
// (parent, ttl_s, expected_ms, deadline_ms, tool) are ignored or clipped alone. Each with a Problem such as "hints[3].verb".
//
// Threading: thread-safe. Cost: O(hints), at most kActionsMax of them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "hint/hint.h"

namespace kvtide::hint {

/// Dialect "native", always a management request; every action carries its own identity and Hints::identity stays empty.
/// Errors: kInvalidArgument when the envelope is no object or list, "hints" is no list, or a bare hint is unusable.
base::Result<Hints> decode_native(const nlohmann::json& message);

}  // namespace kvtide::hint
