#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "sim/readers/readers.h"
#include "sim/readers/record.h"
#include "sim/readers/testing/temp_folder.h"

namespace kvtide::sim {
namespace {

using base::Code;
using base::kMillisecond;
using testing::HasSubstr;

const std::string kHeader = R"({"kvtide_trace":1,"block_tokens":64,"absolute":true})"
                            "\n";

base::Result<Trace> read_text(const std::string& text) {
  LineReader lines = LineReader::over(text, "text");
  return read_jsonl(lines, "text");
}

TEST(Jsonl, WhatIsWrittenReadsBack) {
  const std::array<uint64_t, 3> first = {0x0123456789abcdef, 2, UINT64_MAX};
  const std::array<uint64_t, 1> more = {7};
  std::string text;
  write_jsonl_header(text, 16, false);
  write_jsonl_line(text,
                   {.session = "lead", .prompt_tokens = 50, .reply_tokens = 4, .stop = Stop::kToolUse, .tool = "ba\"sh", .blocks = first});
  write_jsonl_line(text, {.at_ns = 1500 * kMillisecond, .session = "sub", .parent = "lead", .prompt_tokens = 48, .blocks = first});
  write_jsonl_line(text,
                   {.at_ns = 2 * base::kSecond, .session = "lead", .prompt_tokens = 50, .stop = Stop::kEnd, .keep = 2, .blocks = more});
  write_jsonl_line(text, {.at_ns = 3 * base::kSecond, .session = "lead", .prompt_tokens = 15, .blocks = {}});

  const TempFolder folder;
  const auto trace = read_trace(folder.write_zstd("t.jsonl.zst", text).string(), {});
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_FALSE(trace->absolute);
  EXPECT_EQ(trace->block_tokens, 16);
  ASSERT_EQ(trace->sessions.size(), 2u);
  const auto& lead = trace->sessions[0].requests;
  ASSERT_EQ(lead.size(), 3u);
  EXPECT_EQ(trace->sessions[1].parent, 0);
  EXPECT_EQ(trace->sessions[1].number, 0);
  EXPECT_EQ(trace->sessions[1].requests[0].leaf, lead[0].leaf);
  EXPECT_EQ(trace->sessions[1].requests[0].at_ns, 1500 * kMillisecond);
  EXPECT_EQ(trace->parent[lead[1].leaf], trace->parent[lead[0].leaf]);
  EXPECT_NE(lead[1].leaf, lead[0].leaf);
  EXPECT_EQ(lead[2].leaf, kNoNode);
  EXPECT_EQ(lead[0].stop, Stop::kToolUse);
  EXPECT_EQ(lead[1].stop, Stop::kEnd);
  EXPECT_EQ(trace->tools[lead[0].tool], "ba\"sh");
  EXPECT_EQ(lead[0].reply_tokens, 4);
}

TEST(Jsonl, ABlockIsNamedByTheFirstEightBytesOfItsKey) {
  const std::array<uint8_t, 9> key = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xff};
  EXPECT_EQ(block_label(key), 0x0123456789abcdefu);
  std::string line;
  const std::array<uint64_t, 2> labels = {block_label(key), 1};
  write_jsonl_line(line, {.at_ns = 1'000'001'999, .session = "s", .prompt_tokens = 130, .blocks = labels});
  EXPECT_EQ(line, R"({"t":1.000001,"session":"s","prompt":130,"reply":0,"stop":"","blocks":["0123456789abcdef","0000000000000001"]})"
                  "\n");
}

TEST(Jsonl, FieldsComeInAnyOrderUnknownOnesAreIgnoredAndRequestsAreSorted) {
  const auto trace = read_text(R"({"made_by":{"x":[1]},"absolute":false,"block_tokens":64,"kvtide_trace":1})"
                               "\n"
                               R"({"blocks":["a"],"prompt":64,"reply":0,"session":"s","t":5,"more":null})"
                               "\n"
                               R"({"blocks":["b"],"keep":1,"prompt":128,"reply":1,"session":"s","t":4})");
  ASSERT_TRUE(trace) << trace.error().message;
  const auto& requests = trace->sessions[0].requests;
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].prompt_tokens, 128);
  EXPECT_EQ(trace->parent[requests[0].leaf], requests[1].leaf);
}

TEST(Jsonl, AParentThatHasNotSpokenIsNone) {
  const auto trace = read_text(kHeader + R"({"t":0,"session":"a","parent":"gone","prompt":1,"reply":1,"blocks":[]})"
                                         "\n"
                                         R"({"t":0,"session":"b","prompt":1,"reply":1,"blocks":[]})");
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->sessions[0].parent, -1);
  EXPECT_EQ(trace->sessions[1].number, 1);
}

TEST(Jsonl, BadLinesAreNamedWithTheirField) {
  const struct {
    const char* line;
    const char* message;
  } kCases[] = {
      {R"({"session":"s","prompt":1,"reply":1,"blocks":[]})", "text, line 2: field \"t\": it is missing"},
      {R"({"t":0,"prompt":1,"reply":1,"blocks":[]})", "field \"session\": it is missing"},
      {R"({"t":0,"session":"s","reply":1,"blocks":[]})", "field \"prompt\": it is missing"},
      {R"({"t":0,"session":"s","prompt":1,"reply":1})", "field \"blocks\": it is missing"},
      {R"({"t":-1,"session":"s","prompt":1,"reply":1,"blocks":[]})", "field \"t\": expected a number"},
      {R"({"t":0,"session":"s","prompt":3000000000,"reply":1,"blocks":[]})", "field \"prompt\": expected a whole number"},
      {R"({"t":0,"session":"s","prompt":64,"reply":1,"blocks":["xyz"]})", "field \"blocks\": expected 1 to 16 hexadecimal digits"},
      {R"({"t":0,"session":"s","prompt":64,"reply":1,"blocks":["00000000000000001"]})", "expected 1 to 16 hexadecimal digits"},
      {R"({"t":0,"session":"s","prompt":64,"reply":1,"blocks":[]})", "field \"blocks\": with \"keep\" they must be the 1 full blocks"},
      {R"({"t":0,"session":"s","prompt":64,"reply":1,"keep":1,"blocks":[]})", "field \"keep\": over the 0 blocks"},
      {R"({"t":0,"session":"s","prompt":1,"reply":1,"stop":"why","blocks":[]})", "field \"stop\": expected"},
      {R"({"t":0,"session":"s","parent":"s","prompt":1,"reply":1,"blocks":[]})", "field \"parent\": the session itself"},
      {R"([])", "text, line 2: expected '{'"},
      {R"({"t":0)", "text, line 2: "},
  };
  for (const auto& bad : kCases) {
    const auto trace = read_text(kHeader + bad.line);
    ASSERT_FALSE(trace) << bad.line;
    EXPECT_EQ(trace.error().code, Code::kCorrupt);
    EXPECT_THAT(trace.error().message, HasSubstr(bad.message));
  }
}

TEST(Jsonl, OtherVersionsAndOtherFilesAreTold) {
  EXPECT_EQ(read_text(R"({"kvtide_trace":2,"block_tokens":64,"absolute":true})").error().code, Code::kUnsupported);
  EXPECT_THAT(read_text(R"({"id":"trace_0001"})").error().message, HasSubstr("field \"kvtide_trace\": it is missing"));
  EXPECT_THAT(read_text(R"({"kvtide_trace":1,"block_tokens":0,"absolute":true})").error().message, HasSubstr("field \"block_tokens\""));
  EXPECT_THAT(read_text(R"({"kvtide_trace":1,"block_tokens":64})").error().message, HasSubstr("field \"absolute\": it is missing"));
  EXPECT_THAT(read_text("").error().message, HasSubstr("empty"));
}

}  // namespace
}  // namespace kvtide::sim
