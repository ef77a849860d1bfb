// The body field `agent_hint`: the seed form and the form of the vllm#52113 proposal, which the openJiuwen client sends too.
//
//   seed  {session_id, parent_task_id, action: prefetch|offload|evict}
//   RFC   {session_id, parent_session_id, turn_num, cache_control{type, ttl, block_offset, msg_offset, token_offset},
//          session_control{type}, context_management{manage_request, edits[{type, target, start, end, block_start, block_end}]}}
//
// One reader takes both; fields of the two may be mixed. What fields mean where the proposal is silent or contradicts itself:
//   * An edit without target is about the range it gives (messages, or blocks). Without a range too it is about the whole session on a
//     management request, and about this request's messages after a turn, which leaves child sessions alone.
//   * cache_control protects everything up to an offset: msg_offset counts from 1, token_offset is a length, block_offset is the index
//     of the last block. The client's own msg_offset wins over the two that gateways fill in.
//   * session_control: start and resume are `resume`, pause is `pause`, stop is `end` (last of all actions). compact is no action: the
//     next prompt shows what was lost, and dropping anything before it arrives would drop what the compacting call itself needs.
//   * Without manage_request, a hint that asks for something on a body with nothing to infer is a management request.
//   * A bad field that says which (session, range, target) takes its action with it, since ignoring it could free more than was
//     meant. A bad field that only tunes (ttl, turn_num) is ignored alone.
//
// Threading: thread-safe. Errors: none; problems are in the result, and nothing throws. Cost: O(edits), at most kActionsMax of them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "hint/hint.h"

namespace kvtide::hint {

/// Dialect "seed" or "rfc52113"; "none" when the body has no usable `agent_hint`. `elsewhere` is who speaks when the hint names no
/// session. Actions that nobody can be found for are dropped with a Problem.
Hints decode_agent_hint(const nlohmann::json& body, const Identity& elsewhere = {});

}  // namespace kvtide::hint
