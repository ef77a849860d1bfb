#include <array>
#include <string>
#include <string_view>
#include <system_error>

#include "sim/readers/readers.h"

namespace kvtide::sim {
namespace {

namespace fs = std::filesystem;

struct Known {
  std::string_view what;
  std::string_view folder;
  std::string_view file;
};
constexpr std::array<Known, 4> kKnown = {{
    {"weka", "weka-claude-code", "traces.jsonl.zst"},
    {"pauses", "agentcgroup-swe-rebench", "calls.csv"},
    {"chat", "mooncake", "conversation_trace.jsonl"},
    {"azure", "azure-llm-2023", "AzureLLMInferenceTrace_conv.csv"},
}};

base::Result<fs::path> find_file(const Known& known, const fs::path& data_dir) {
  std::error_code failed;
  for (const fs::path& file : {data_dir / known.folder / known.file, data_dir / known.file}) {
    if (fs::exists(file, failed)) return file;
  }
  const std::string file = (fs::path(known.folder) / known.file).string();
  return base::error(base::Code::kNotFound, "trace '" + std::string(known.what) + "': no " + file + " under '" + data_dir.string() +
                                                "' (docs/traces.md says where it comes from)");
}

}  // namespace

base::Result<Trace> read_trace(const std::string& what, const fs::path& data_dir, const LineFilter& wanted) {
  for (const Known& known : kKnown) {
    if (known.what != what) continue;
    const auto file = find_file(known, data_dir);
    if (!file) return tl::make_unexpected(file.error());
    if (what == "weka") return read_weka(*file, wanted);
    if (what == "pauses") return read_agentcgroup(*file);
    if (what == "chat") return read_mooncake(*file);
    return read_azure(*file);
  }
  std::error_code failed;
  if (!fs::exists(what, failed)) {
    return base::error(base::Code::kNotFound, "trace '" + what + "': neither weka, pauses, chat or azure, nor a file");
  }
  return read_jsonl(fs::path(what));
}

}  // namespace kvtide::sim
