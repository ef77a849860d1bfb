// Walks protocol/golden: messages as clients send them, with what each must become.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "hint/native.h"
#include "hint/precedence.h"

namespace kvtide::hint {
namespace {

using nlohmann::json;

/// An action as golden files write it: fields without a value are left out. Its session is written only where it is not the message's.
json written(const Action& action, const Identity& speaker) {
  json out = {{"verb", verb_name(action.verb)}, {"target", target_name(action.target)}};
  if (action.start) out["start"] = *action.start;
  if (action.end) out["end"] = *action.end;
  if (action.ttl_ns) out["ttl_s"] = *action.ttl_ns / base::kSecond;
  if (action.expected_ns) out["expected_ms"] = *action.expected_ns / base::kMillisecond;
  if (!action.tool.empty()) out["tool"] = action.tool;
  if (!action.hint_id.empty()) out["hint_id"] = action.hint_id;
  if (action.identity != speaker) {
    out["session_id"] = action.identity.session_id;
    if (!action.identity.parent_id.empty()) out["parent_id"] = action.identity.parent_id;
  }
  return out;
}

json written(const Hints& hints) {
  json out = {{"dialect", hints.dialect},
              {"session_id", hints.identity.session_id},
              {"parent_id", hints.identity.parent_id},
              {"manage_request", hints.manage_request},
              {"actions", json::array()},
              {"problems", json::array()}};
  if (hints.turn_number) out["turn_number"] = *hints.turn_number;
  for (const Action& action : hints.actions) out["actions"].push_back(written(action, hints.identity));
  for (const Problem& problem : hints.problems) out["problems"].push_back(problem.field);
  return out;
}

json decoded(const json& golden) {
  if (golden.at("dialect") == "native") {
    const base::Result<Hints> hints = decode_native(golden.at("body"));
    return hints ? written(*hints) : json{{"dialect", "native"}, {"error", base::code_name(hints.error().code)}};
  }
  std::vector<std::pair<std::string, std::string>> held;
  const json given = golden.value("headers", json::object());
  for (const auto& [name, value] : given.items()) held.emplace_back(name, value.get<std::string>());
  std::vector<Header> headers;
  for (const auto& [name, value] : held) headers.push_back({name, value});
  return written(decode_body(golden.at("body"), headers));
}

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(KVTIDE_GOLDEN_DIR)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Golden, EveryMessageBecomesWhatItsFileSays) {
  for (const auto& file : golden_files()) {
    SCOPED_TRACE(file.filename());
    std::ifstream in(file);
    const json golden = json::parse(in, nullptr, false);
    ASSERT_TRUE(golden.is_object());
    json expected = golden.at("expect");
    expected["dialect"] = golden.at("dialect");
    EXPECT_EQ(decoded(golden), expected);
  }
}

TEST(Golden, EveryClientGenerationIsThere) {
  std::set<std::string> sources;
  for (const auto& file : golden_files()) {
    std::ifstream in(file);
    sources.insert(json::parse(in).at("source"));
  }
  for (const char* source : {"openjiuwen G1", "openjiuwen G2", "openjiuwen G3", "seed form", "vllm#52113", "malformed", "kvtide client"}) {
    EXPECT_TRUE(sources.contains(source)) << source;
  }
}

}  // namespace
}  // namespace kvtide::hint
