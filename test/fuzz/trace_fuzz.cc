// Traces in our own format from strangers: reading never throws or crashes, and what it accepts is a sound tree of blocks and sessions.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "sim/readers/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtide;
  sim::LineReader lines = sim::LineReader::over({reinterpret_cast<const char*>(data), size}, "fuzz");
  const auto trace = sim::read_jsonl(lines, "fuzz");
  if (!trace) {
    KV_CHECK(!trace.error().message.empty());
    return 0;
  }
  for (size_t i = 0; i < trace->parent.size(); ++i) KV_CHECK(trace->parent[i] == sim::kNoNode || trace->parent[i] < i);
  for (size_t i = 0; i < trace->sessions.size(); ++i) {
    const sim::TraceSession& session = trace->sessions[i];
    KV_CHECK(!session.requests.empty() && session.parent < static_cast<int32_t>(i));
    base::TimeNs last_ns = 0;
    for (const sim::TraceRequest& request : session.requests) {
      KV_CHECK(request.at_ns >= last_ns && request.tool < trace->tools.size());
      last_ns = request.at_ns;
      int32_t blocks = 0;
      for (sim::Node node = request.leaf; node != sim::kNoNode; node = trace->parent[node]) ++blocks;
      KV_CHECK(blocks == request.prompt_tokens / trace->block_tokens);
    }
  }
  return 0;
}
