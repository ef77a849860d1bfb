// From the files of others, and from our own format, to a Trace. docs/traces.md says what each file holds and lacks.
//
// What every reader promises: the leaf of a request stands at depth floor(prompt_tokens / block_tokens), so path and length agree;
// requests of a session are by time; a session comes after its parent; equal files give equal traces.
//
// Threading: free functions, thread-safe.
// Errors: kNotFound (no such file), kUnavailable (unreadable), kCorrupt (the message names file, line and field), kUnsupported (a version
// of our format that is not known), kResourceExhausted (over kNodesMax blocks). Bad input never crashes.
// Cost: O(bytes); memory is the trace, the longest line and one hash entry a block of the session or, where ids are global, of the trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/status.h"
#include "sim/readers/line_reader.h"
#include "sim/trace.h"

namespace kvtide::sim {

inline constexpr size_t kNodesMax = size_t{1} << 28;
inline constexpr size_t kNameBytesMax = 256;  // of a session or tool
inline constexpr base::TimeNs kTraceNsMax = 1'000'000'000 * base::kSecond;
inline constexpr base::DurationNs kGapNsMax = 3600 * base::kSecond;  // longer pauses of WEKA sessions are cut to this

/// Whether to read the session on this line (from 0); an empty function means every one.
using LineFilter = std::function<bool(int32_t number)>;

/// `what`: "weka", "pauses" (AgentCgroup), "chat" (Mooncake conversation) or "azure" (conversation), looked for under `data_dir` in the
/// folders of docs/traces.md and in `data_dir` itself; anything else is a file in our own format. Only "weka" uses `wanted`.
base::Result<Trace> read_trace(const std::string& what, const std::filesystem::path& data_dir, const LineFilter& wanted = {});

/// WEKA: a session a line. Sub-agents come right behind their parent. Lines that are not wanted are not looked at.
base::Result<Trace> read_weka(const std::filesystem::path& file, const LineFilter& wanted = {});

/// calls.csv of AgentCgroup, without the set `glm`. Its blocks are inferred: a lower bound of what can be shared.
base::Result<Trace> read_agentcgroup(const std::filesystem::path& calls_csv);

/// Mooncake: requests without sessions, each a session of its own. Only full blocks of 512 tokens count.
base::Result<Trace> read_mooncake(const std::filesystem::path& file);

/// Azure LLM inference 2023: arrivals and lengths; no two requests share a block.
base::Result<Trace> read_azure(const std::filesystem::path& csv);

/// Our own format.
base::Result<Trace> read_jsonl(const std::filesystem::path& file);
base::Result<Trace> read_jsonl(LineReader& lines, std::string name);

}  // namespace kvtide::sim
