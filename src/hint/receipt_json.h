// Receipts and problems as clients see them.
//
// Threading: thread-safe. Text is passed on as it is: whoever prints it needs UTF-8 in it, which decoded hints guarantee.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "hint/hint.h"

namespace kvtide::hint {

/// {"hint_id", "verb", "status", "session_id", "generation", "blocks", "bytes", "from", "to", "shared_kept", "reason"}: always all of
/// them; from, to and reason are null when empty.
nlohmann::json receipt_json(const Receipt& receipt);

/// {"field", "message"}
nlohmann::json problem_json(const Problem& problem);

/// The response field `kv_hint_result`: {"receipts": [...], "problems": [...]}.
nlohmann::json hint_result_json(std::span<const Receipt> receipts, std::span<const Problem> problems);

}  // namespace kvtide::hint
