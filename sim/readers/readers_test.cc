#include "sim/readers/readers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/readers/testing/temp_folder.h"

namespace kvtide::sim {
namespace {

using base::Code;
using base::kMillisecond;
using base::kSecond;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// From the first block to the leaf.
std::vector<Node> path(const Trace& trace, const TraceRequest& request) {
  std::vector<Node> nodes;
  for (Node node = request.leaf; node != kNoNode; node = trace.parent[node]) nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

size_t shared_blocks(const Trace& trace, const TraceRequest& a, const TraceRequest& b) {
  const auto x = path(trace, a), y = path(trace, b);
  const size_t size = std::min(x.size(), y.size());
  return static_cast<size_t>(std::mismatch(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(size), y.begin()).first - x.begin());
}

void expect_sound(const Trace& trace) {
  for (size_t i = 0; i < trace.sessions.size(); ++i) {
    const TraceSession& session = trace.sessions[i];
    ASSERT_FALSE(session.requests.empty());
    ASSERT_LT(session.parent, static_cast<int32_t>(i));
    const size_t parent = session.parent < 0 ? i : static_cast<size_t>(session.parent);
    ASSERT_EQ(session.number, trace.sessions[parent].number);
    for (const TraceRequest& request : session.requests) {
      ASSERT_EQ(path(trace, request).size(), static_cast<size_t>(request.prompt_tokens / trace.block_tokens));
      ASSERT_LT(request.tool, trace.tools.size());
    }
    ASSERT_TRUE(std::is_sorted(session.requests.begin(), session.requests.end(), [](auto& a, auto& b) { return a.at_ns < b.at_ns; }));
  }
}

std::vector<double> times_s(const TraceSession& session) {
  std::vector<double> times;
  for (const TraceRequest& request : session.requests) times.push_back(static_cast<double>(request.at_ns) / static_cast<double>(kSecond));
  return times;
}

std::string weka_request(const std::string& t, int in, const std::string& ids, const std::string& stop = "") {
  return R"({"t":)" + t + R"(,"type":"n","in":)" + std::to_string(in) + R"(,"out":5,"hash_ids":[)" + ids +
         R"(],"input_types":["text"],"stop":")" + stop + R"(","api_time":1.0})";
}
std::string weka_line(const std::string& id, const std::string& requests) {
  return R"({"id":")" + id + R"(","block_size":64,"hash_id_scope":"local","requests":[)" + requests + "]}\n";
}

TEST(Weka, GapsAreCappedAndABackwardClockStandsStill) {
  const TempFolder folder;
  std::string requests = weka_request("0.0", 10, "");
  for (const char* t : {"5.5", "9005.5", "9000.5", "9001"}) requests += "," + weka_request(t, 10, "");
  const auto trace = read_weka(folder.write_zstd("t.zst", weka_line("a", requests)));
  ASSERT_TRUE(trace) << trace.error().message;
  expect_sound(*trace);
  EXPECT_THAT(times_s(trace->sessions[0]), ElementsAre(0, 5.5, 3605.5, 3605.5, 3606));
  EXPECT_FALSE(trace->absolute);
  EXPECT_EQ(trace->block_tokens, 64);
}

TEST(Weka, EqualIdsAreEqualBlocksInsideOneSessionOnly) {
  const TempFolder folder;
  const std::string a = weka_request("0", 200, "1,2,3", "tool_use") + "," + weka_request("1", 260, "1,2,34,5", "end_turn") + "," +
                        weka_request("2", 192, "1, 2, 3", "max_tokens") + "," + weka_request("3", 64, "1") + "," +
                        weka_request("4", 192, "1,2,3");
  const auto trace = read_weka(folder.write("t", weka_line("a", a) + weka_line("b", weka_request("0", 200, "1,2,3"))));
  ASSERT_TRUE(trace) << trace.error().message;
  expect_sound(*trace);
  const auto& requests = trace->sessions[0].requests;
  EXPECT_EQ(shared_blocks(*trace, requests[0], requests[1]), 2);
  EXPECT_EQ(requests[0].leaf, requests[2].leaf);
  EXPECT_EQ(requests[0].leaf, requests[4].leaf);
  EXPECT_EQ(shared_blocks(*trace, requests[0], requests[3]), 1);
  EXPECT_EQ(shared_blocks(*trace, requests[0], trace->sessions[1].requests[0]), 0);
  EXPECT_EQ(trace->parent.size(), 3u + 2u + 3u);
  EXPECT_EQ(requests[0].stop, Stop::kToolUse);
  EXPECT_EQ(requests[1].stop, Stop::kEnd);
  EXPECT_EQ(requests[2].stop, Stop::kEnd);
  EXPECT_EQ(requests[3].stop, Stop::kUnknown);
  EXPECT_EQ(trace->sessions[1].number, 1);
}

TEST(Weka, SubAgentsStartAtTheirMarkerRightBehindTheirParent) {
  const TempFolder folder;
  const std::string inner = R"({"t":4,"type":"subagent","agent_id":"y","requests":[)" + weka_request("1", 64, "9") + "]}";
  // `requests` before `t`: the order of fields is not ours.
  const std::string outer = R"({"type":"subagent","agent_id":"x","requests":[)" + weka_request("0", 64, "9") + "," + inner + "," +
                            weka_request("7000", 128, "9,10") + R"(],"t":10})";
  const std::string empty = R"({"t":30,"type":"subagent","agent_id":"z","requests":[]})";
  const auto trace = read_weka(
      folder.write("t", weka_line("root", weka_request("0", 64, "1") + "," + outer + "," + empty + "," + weka_request("40", 64, "1")) +
                            weka_line("next", weka_request("0", 64, "1"))));
  ASSERT_TRUE(trace) << trace.error().message;
  expect_sound(*trace);
  ASSERT_EQ(trace->sessions.size(), 4u);
  EXPECT_THAT(times_s(trace->sessions[0]), ElementsAre(0, 40));
  EXPECT_EQ(trace->sessions[1].name, "root/x");
  EXPECT_EQ(trace->sessions[1].parent, 0);
  EXPECT_THAT(times_s(trace->sessions[1]), ElementsAre(10, 3614));
  EXPECT_EQ(trace->sessions[2].name, "root/x/y");
  EXPECT_EQ(trace->sessions[2].parent, 1);
  EXPECT_THAT(times_s(trace->sessions[2]), ElementsAre(15));
  EXPECT_EQ(trace->sessions[1].requests[0].leaf, trace->sessions[2].requests[0].leaf);
  EXPECT_EQ(trace->sessions[3].name, "next");
  EXPECT_EQ(trace->sessions[3].parent, -1);
  EXPECT_EQ(trace->sessions[3].number, 1);
}

TEST(Weka, LinesThatAreNotWantedAreNotParsed) {
  const TempFolder folder;
  const std::string request = weka_request("0", 64, "1");
  const auto file = folder.write("t", weka_line("a", request) + "not JSON\n" + weka_line("c", request));
  const auto trace = read_weka(file, [](int32_t number) { return number % 2 == 0; });
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->sessions.size(), 2u);
  EXPECT_EQ(trace->sessions[1].number, 2);
  EXPECT_FALSE(read_weka(file));
}

TEST(Weka, ErrorsNameFileLineAndField) {
  const TempFolder folder;
  const auto message_of = [&](const std::string& requests) {
    const auto trace = read_weka(folder.write("bad.jsonl", weka_line("a", weka_request("0", 64, "1")) + weka_line("b", requests)));
    return trace ? std::string("no error") : trace.error().message;
  };
  EXPECT_THAT(message_of(weka_request("0", 128, "1")), AllOf(HasSubstr("bad.jsonl, line 2: field \"hash_ids\""), HasSubstr("fewer than")));
  EXPECT_THAT(message_of(weka_request("0", 64, "1;2")), HasSubstr("\"hash_ids\": expected whole numbers"));
  EXPECT_THAT(message_of(weka_request("0", 64, "-1")), HasSubstr("\"hash_ids\": expected whole numbers"));
  EXPECT_THAT(message_of(weka_request("-1", 64, "1")), HasSubstr("field \"t\": expected a number"));
  EXPECT_THAT(message_of(weka_request("1e300", 64, "1")), HasSubstr("field \"t\": expected a number"));
  EXPECT_THAT(message_of(weka_request("0", -5, "")), HasSubstr("field \"in\""));
  EXPECT_THAT(message_of(R"({"type":"n","in":1,"out":1,"hash_ids":[]})"), HasSubstr("field \"t\": it is missing"));
  EXPECT_THAT(message_of(R"({"t":1,"type":"n","requests":[]})"), HasSubstr("field \"requests\""));
  std::string nested = weka_request("0", 64, "1");
  for (int i = 0; i < 100; ++i) nested = R"({"t":0,"type":"subagent","requests":[)" + nested + "]}";
  EXPECT_THAT(message_of(nested), HasSubstr("nested too deep"));
  EXPECT_THAT(read_weka(folder.path() / "absent").error().code, Code::kNotFound);
}

TEST(Mooncake, RequestsShareFullBlocksAcrossTheFile) {
  const TempFolder folder;
  const auto trace = read_mooncake(folder.write("m", R"({"timestamp": 0, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1024, "output_length": 8, "hash_ids": [0, 5]}
{"timestamp": 3000, "input_length": 100, "output_length": 7, "hash_ids": [6]}
)"));
  ASSERT_TRUE(trace) << trace.error().message;
  expect_sound(*trace);
  EXPECT_TRUE(trace->absolute);
  EXPECT_EQ(trace->block_tokens, 512);
  ASSERT_EQ(trace->sessions.size(), 3u);
  EXPECT_EQ(trace->sessions[1].requests[0].at_ns, 3 * kSecond);
  EXPECT_EQ(shared_blocks(*trace, trace->sessions[0].requests[0], trace->sessions[1].requests[0]), 1u);
  EXPECT_EQ(trace->sessions[2].requests[0].leaf, kNoNode);
  const auto bad = read_mooncake(folder.write("bad", R"({"timestamp": 0, "input_length": 1024, "output_length": 9, "hash_ids": [0]})"));
  EXPECT_THAT(bad.error().message, HasSubstr("line 1: field \"hash_ids\""));
}

TEST(Azure, ArrivalsCountFromTheFirstAndNothingIsShared) {
  const TempFolder folder;
  const auto trace = read_azure(folder.write("a.csv",
                                             "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9799600,130,10\r\n"
                                             "2023-11-17 00:00:00.9800000,64,1\r\n2023-11-17 00:00:01,63,0"));
  ASSERT_TRUE(trace) << trace.error().message;
  expect_sound(*trace);
  ASSERT_EQ(trace->sessions.size(), 3u);
  EXPECT_EQ(trace->sessions[0].requests[0].at_ns, 0);
  EXPECT_EQ(trace->sessions[1].requests[0].at_ns, 1000 * kMillisecond + 40 * base::kMicrosecond);
  EXPECT_EQ(trace->sessions[2].requests[0].at_ns, 1020 * kMillisecond + 40 * base::kMicrosecond);
  EXPECT_EQ(trace->parent.size(), 3u);
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* row :
       {"2023-13-16 18:17:03,1,1", "2023-02-30 18:17:03,1,1", "x,1,1", "2023-11-16 18:17:03.,1,1", "2023-11-16 18:17:03,-1,1",
        "2023-11-16 18:17:03,1", "2023-11-16 18:17:03,1,1,1", "9999999999-11-16 18:17:03,1,1"}) {
    const auto bad = read_azure(folder.write("bad.csv", head + row));
    ASSERT_FALSE(bad) << row;
    EXPECT_THAT(bad.error().message, HasSubstr("bad.csv, line 2: ")) << row;
  }
  EXPECT_THAT(read_azure(folder.write("short", "TIMESTAMP,ContextTokens\n")).error().message, HasSubstr("no column 'GeneratedTokens'"));
}

TEST(AgentCgroup, APromptExtendsTheLastOneOfItsAgentAndACompactionKeepsTheFirst) {
  const TempFolder folder;
  const auto trace = read_agentcgroup(folder.write(
      "calls.csv",
      "set,session,agent,call,model,t_input_ready,t_first_block,t_last_block,prompt_tokens,cache_read,cache_create,output_tokens,"
      "reply_chars,tools\n"
      "haiku,s1,main,0,m,0.0,1,2,640,0,0,2,400,Task\n"
      "haiku,s1,main,1,m,9.5,1,2,1290,0,0,200,400,Read+Grep\n"
      "haiku,s1,main,2,m,12,1,2,1000,0,0,2,41,\n"
      "haiku,s1,main,3,m,13,1,2,320,0,0,2,41,\n"
      "haiku,s1,sub1,0,m,2.25,1,2,640,0,0,2,400,Read\n"
      "glm,s1,main,0,m,0.0,1,2,640,0,0,2,400,Bash\n"
      "branchfs,s1,main,0,m,0.0,1,2,64,0,0,2,400,Bash\n"));
  ASSERT_TRUE(trace) << trace.error().message;
  expect_sound(*trace);
  ASSERT_EQ(trace->sessions.size(), 3u);
  const auto& main = trace->sessions[0].requests;
  const TraceSession& sub = trace->sessions[1];
  EXPECT_THAT(times_s(trace->sessions[0]), ElementsAre(0, 9.5, 12, 13));
  EXPECT_EQ(shared_blocks(*trace, main[0], main[1]), 10u);
  EXPECT_EQ(shared_blocks(*trace, main[1], main[2]), 10u);
  EXPECT_EQ(shared_blocks(*trace, main[2], main[3]), 5u);
  EXPECT_EQ(main[0].reply_tokens, 100);
  EXPECT_EQ(main[1].reply_tokens, 200);
  EXPECT_EQ(trace->tools[main[0].tool], "Task");
  EXPECT_EQ(trace->tools[main[1].tool], "Read");
  EXPECT_EQ(main[1].tool, sub.requests[0].tool);
  EXPECT_EQ(main[1].stop, Stop::kToolUse);
  EXPECT_EQ(main[2].stop, Stop::kEnd);
  EXPECT_EQ(main[2].tool, 0);
  EXPECT_EQ(sub.parent, 0);
  EXPECT_EQ(sub.requests[0].at_ns, 2250 * kMillisecond);
  EXPECT_EQ(shared_blocks(*trace, main[0], sub.requests[0]), 0u);
  EXPECT_EQ(trace->sessions[2].number, 1);
  EXPECT_EQ(trace->sessions[2].parent, -1);
}

TEST(ReadTrace, FindsKnownTracesInTheirFolderOrTheFolderItself) {
  const TempFolder folder;
  folder.write("in/mooncake/conversation_trace.jsonl", R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[]})");
  folder.write("flat/traces.jsonl.zst", weka_line("a", weka_request("0", 64, "1")));
  EXPECT_TRUE(read_trace("chat", folder.path() / "in"));
  EXPECT_TRUE(read_trace("weka", folder.path() / "flat"));
  const auto absent = read_trace("weka", folder.path() / "in");
  EXPECT_EQ(absent.error().code, Code::kNotFound);
  EXPECT_THAT(absent.error().message, HasSubstr("weka-claude-code"));
  EXPECT_EQ(read_trace("wekka", folder.path()).error().code, Code::kNotFound);
}

TEST(ReadTrace, ThePublicDataReadsAsItsSourcesSay) {
  const char* data = std::getenv("KVTIDE_DATA");
  if (data == nullptr) GTEST_SKIP() << "KVTIDE_DATA names no folder with the public traces";
  const auto sample = read_weka(std::filesystem::path(data) / "weka-claude-code" / "sample_subagents_trace_0291.json");
  ASSERT_TRUE(sample) << sample.error().message;
  expect_sound(*sample);
  ASSERT_EQ(sample->sessions.size(), 3u);
  EXPECT_EQ(sample->sessions[1].requests.size(), 5u);
  EXPECT_EQ(sample->sessions[2].requests.size(), 7u);
  EXPECT_EQ(sample->sessions[1].requests[0].at_ns, 1'148'013 * kMillisecond);
  EXPECT_EQ(sample->sessions[0].requests[0].prompt_tokens, 17'869);
}

}  // namespace
}  // namespace kvtide::sim
