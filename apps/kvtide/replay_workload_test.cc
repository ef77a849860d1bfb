#include "apps/kvtide/replay_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvtide::app {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const TokenScale kByteTokens{.bytes_per_token = 1, .per_message = 0};

/// A trajectory whose calls see prompts of 101, 201, 301 ... estimated tokens (each message has one more than its bytes).
std::vector<Message> trajectory(int calls) {
  std::vector<Message> out{{"system", std::string(49, 's')}, {"user", std::string(49, 'u')}};
  for (int i = 0; i < calls; ++i) {
    out.push_back({"assistant", std::string(49, 'a')});
    out.push_back({"user", std::string(49, 'o')});
  }
  return out;
}

class Folder {
 public:
  Folder() : path_(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(path_);
    fs::create_directories(path_ / "swebench-verified-mini-swe-agent");
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path file() const { return path_ / "swebench-verified-mini-swe-agent" / "trajs_slim.jsonl.zst"; }
  std::string path() const { return path_.string(); }
  void write(const std::string& text) const {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
    std::ofstream(file(), std::ios::binary) << packed;
  }
  void write_trajectories(int count, int calls) const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      nlohmann::json messages = nlohmann::json::array();
      for (const Message& m : trajectory(calls)) messages.push_back({{"role", m.role}, {"content", m.content}});
      text += nlohmann::json{{"instance_id", "task-" + std::to_string(i)}, {"messages", messages}}.dump() + "\n";
    }
    write(text);
  }

 private:
  fs::path path_;
};

TEST(Gaps, FollowTheMixture) {
  base::Random random(7);
  std::array<int, 4> in{};
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double gap = draw_gap_s(random);
    ASSERT_GE(gap, 0.02);
    ASSERT_LE(gap, 1200);
    ++in[gap < 1 ? 0 : gap < 10 ? 1 : gap < 60 ? 2 : 3];
  }
  EXPECT_NEAR(in[0], 0.61 * kDraws, 300);
  EXPECT_NEAR(in[1], 0.27 * kDraws, 300);
  EXPECT_NEAR(in[2], 0.08 * kDraws, 200);
  EXPECT_NEAR(in[3], 0.04 * kDraws, 150);
}

TEST(Gaps, AClientsEstimateIsRightInTheMedianAndOffByAFactor) {
  base::Random random(7);
  int above = 0, within = 0;
  constexpr int kDraws = 10000;
  for (int i = 0; i < kDraws; ++i) {
    const double told = draw_told_gap_s(4, random);
    above += told > 4;
    within += told > 4 / std::exp(0.5) && told < 4 * std::exp(0.5);  // one sigma
  }
  EXPECT_NEAR(above, 0.5 * kDraws, 200);
  EXPECT_NEAR(within, 0.683 * kDraws, 200);
}

TEST(Sessions, EndBeforeTheFirstPromptThatPassesTheContext) {
  base::Random random(1);
  const WorkloadOptions options{.max_context_tokens = 310, .max_reply_tokens = 1000};
  const auto session = cut_session("s", trajectory(20), options, kByteTokens, random);
  ASSERT_TRUE(session);
  ASSERT_EQ(session->turns.size(), 3u);
  EXPECT_EQ(session->opening.size(), 2u);
  EXPECT_EQ(session->turns[0].prompt_tokens, 100);
  EXPECT_EQ(session->turns[2].prompt_tokens, 300);
  EXPECT_EQ(session->turns[0].following.size(), 1u);
  EXPECT_TRUE(session->turns[2].following.empty()) << "nothing comes after the last call";
  EXPECT_EQ(session->turns[2].gap_s, 0);
}

TEST(Sessions, WithFewerThanTwoCallsAreNone) {
  base::Random random(1);
  EXPECT_FALSE(cut_session("s", trajectory(20), {.max_context_tokens = 150}, kByteTokens, random));
  EXPECT_FALSE(cut_session("s", trajectory(1), {}, kByteTokens, random));
  EXPECT_FALSE(cut_session("s", {}, {}, kByteTokens, random));
}

TEST(Sessions, CutRepliesMakeTheNextPromptShorterToo) {
  base::Random random(1);
  const auto session = cut_session("s", trajectory(3), {.max_reply_tokens = 9}, kByteTokens, random);
  ASSERT_TRUE(session);
  EXPECT_EQ(session->turns[0].reply, std::string(9, 'a'));
  EXPECT_EQ(session->turns[1].prompt_tokens, 100 + 10 + 50);
}

TEST(Sessions, PausesAreScaledAndCapped) {
  base::Random random(1);
  const auto session =
      cut_session("s", trajectory(100), {.max_context_tokens = 1 << 20, .gap_scale = 0.5, .gap_cap_s = 3}, kByteTokens, random);
  base::Random same(1);
  for (size_t i = 0; i + 1 < session->turns.size(); ++i) {
    const double gap = std::min(draw_gap_s(same) * 0.5, 3.0);
    EXPECT_DOUBLE_EQ(session->turns[i].gap_s, gap);
    draw_told_gap_s(gap, same);
  }
}

TEST(Texts, AreNeverCutInsideACharacter) {
  EXPECT_EQ(cut_text("abc", 5), "abc");
  EXPECT_EQ(cut_text("abc", 2), "ab");
  EXPECT_EQ(cut_text("a\xC3\xA4z", 2), "a");
  EXPECT_EQ(cut_text("\xF0\x9F\x98\x80", 3), "");
}

TEST(Trajectories, AreFoundWhereTheyAreNamed) {
  const Folder folder;
  folder.write_trajectories(1, 3);
  EXPECT_EQ(**find_trajectories(folder.path(), "", "/usr/bin/kvtide"), folder.file());
  EXPECT_EQ(**find_trajectories("", folder.path(), "/usr/bin/kvtide"), folder.file()) << "the environment";
  const auto missing = find_trajectories(folder.path() + "/none", folder.path(), "/usr/bin/kvtide");
  ASSERT_FALSE(missing) << "a named folder without data is an error, never a silent fallback";
  EXPECT_THAT(missing.error().message, HasSubstr("--data"));
}

TEST(Trajectories, TheSameSeedGivesTheSameWorkload) {
  const Folder folder;
  folder.write_trajectories(20, 6);
  const WorkloadOptions options{.users = 3, .sessions = 7, .seed = 5};
  const auto a = load_workload(folder.file(), options, kByteTokens), b = load_workload(folder.file(), options, kByteTokens);
  ASSERT_TRUE(a) << a.error().message;
  ASSERT_EQ(a->sessions.size(), 7u);
  EXPECT_EQ(a->queues, (std::vector<std::vector<size_t>>{{0, 3, 6}, {1, 4}, {2, 5}}));
  for (size_t i = 0; i < a->sessions.size(); ++i) {
    EXPECT_EQ(a->sessions[i].name, b->sessions[i].name);
    EXPECT_EQ(a->sessions[i].turns[0].gap_s, b->sessions[i].turns[0].gap_s);
  }
  WorkloadOptions other = options;
  other.seed = 6;
  const auto c = load_workload(folder.file(), other, kByteTokens);
  EXPECT_NE(a->sessions[0].name + a->sessions[1].name, c->sessions[0].name + c->sessions[1].name);
}

TEST(Trajectories, BrokenFilesAndLinesAreErrorsWithTheirPlace) {
  const Folder folder;
  folder.write("{\"messages\":[]}\nnot json\n");
  const auto bad = load_workload(folder.file(), {}, {});
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message, HasSubstr("line 2"));
  folder.write_trajectories(50, 30);
  fs::resize_file(folder.file(), fs::file_size(folder.file()) / 2);
  EXPECT_FALSE(read_zstd_lines(folder.file()));
  std::ofstream(folder.file()) << "plain text, not zstd";
  EXPECT_FALSE(read_zstd_lines(folder.file()));
}

TEST(Synthetic, SaysSoAndKeepsTheShape) {
  const WorkloadOptions options{.users = 4, .sessions = 8, .max_context_tokens = 3000, .seed = 3};
  const Workload w = synthetic_workload(options, {});
  EXPECT_TRUE(w.synthetic);
  EXPECT_THAT(w.name, HasSubstr("synthetic"));
  EXPECT_THAT(w.source, HasSubstr("synthetic"));
  ASSERT_EQ(w.sessions.size(), 8u);
  for (const ReplaySession& s : w.sessions) {
    EXPECT_EQ(s.opening.front().content, w.sessions.front().opening.front().content) << "one system prompt for all";
    EXPECT_LE(s.turns.back().prompt_tokens, 3000);
    EXPECT_GT(s.turns.size(), 2u);
  }
  EXPECT_NE(w.sessions[0].opening[1].content, w.sessions[1].opening[1].content);
  EXPECT_EQ(synthetic_workload(options, {}).sessions[5].turns[1].reply, w.sessions[5].turns[1].reply);
}

TEST(LiveSet, IsTheSumOverUsersWithTheCommonOpeningOnce) {
  base::Random random(1);
  Workload w;
  for (int i = 0; i < 3; ++i) w.sessions.push_back(*cut_session("s", trajectory(3), {.max_reply_tokens = 1000}, kByteTokens, random));
  w.queues = {{0, 2}, {1}};
  // Step 3: both users at 300 + 50, of which the system prompt (50) is shared.
  EXPECT_EQ(peak_live_tokens(w, kByteTokens), 2 * 350 - 50);
}

TEST(SampleText, TakesPiecesFromEverywhere) {
  const Workload w = synthetic_workload({.users = 2, .sessions = 4}, {});
  const std::string text = sample_text(w, 6000);
  EXPECT_GT(text.size(), 3000u);
  EXPECT_LE(text.size(), 6600u);
}

}  // namespace
}  // namespace kvtide::app
