#include "sim/readers/record.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace kvtide::sim {
namespace {

std::string quoted(std::string_view text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

std::string_view stop_name(Stop stop) {
  switch (stop) {
    case Stop::kUnknown: return "";
    case Stop::kEnd: return "end";
    case Stop::kToolUse: return "tool_use";
  }
  return "";
}

void append_blocks(std::string& out, std::span<const uint64_t> blocks) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  bool is_first = true;
  for (const uint64_t label : blocks) {
    std::array<char, 18> text{};
    text.front() = text.back() = '"';
    for (size_t i = 0; i < 16; ++i) text[1 + i] = kDigits[(label >> (60 - 4 * i)) & 15];
    if (!is_first) out += ',';
    is_first = false;
    out.append(text.data(), text.size());
  }
}

}  // namespace

uint64_t block_label(std::span<const uint8_t> key) {
  KV_CHECK(key.size() >= sizeof(uint64_t));
  uint64_t label = 0;
  for (const uint8_t byte : key.first(sizeof(uint64_t))) label = label << 8 | byte;
  return label;
}

void write_jsonl_header(std::string& out, int32_t block_tokens, bool absolute) {
  out += R"({"kvtide_trace":1,"block_tokens":)" + std::to_string(block_tokens) + R"(,"absolute":)" + (absolute ? "true" : "false") + "}\n";
}

void write_jsonl_line(std::string& out, const RecordedRequest& request) {
  std::array<char, 32> seconds{};
  const int64_t micros = request.at_ns / base::kMicrosecond;
  std::snprintf(seconds.data(), seconds.size(), "%lld.%06lld", static_cast<long long>(micros / 1'000'000),
                static_cast<long long>(micros % 1'000'000));
  out += std::string(R"({"t":)") + seconds.data() + R"(,"session":)" + quoted(request.session);
  if (!request.parent.empty()) out += R"(,"parent":)" + quoted(request.parent);
  out += R"(,"prompt":)" + std::to_string(request.prompt_tokens) + R"(,"reply":)" + std::to_string(request.reply_tokens);
  out += R"(,"stop":")" + std::string(stop_name(request.stop)) + '"';
  if (!request.tool.empty()) out += R"(,"tool":)" + quoted(request.tool);
  if (request.keep > 0) out += R"(,"keep":)" + std::to_string(request.keep);
  out += R"(,"blocks":[)";
  append_blocks(out, request.blocks);
  out += "]}\n";
}

}  // namespace kvtide::sim
