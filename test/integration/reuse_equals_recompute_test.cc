// Replies do not change with what the cache does: sessions over the real engine, with room for all, evicted and restored between any two
// turns, and with no reuse at all.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "chain_engine.h"
#include "engine/llamacpp/llamacpp.h"
#include "session_client.h"
#include "tier/host/host_tier.h"

namespace kvtide::serving {
namespace {

using engine::LayoutChoice;

constexpr int32_t kCtx = 1024;
// The same tokens computed in batches of another shape, or over cells in another order, give other last bits. On the models measured
// that moves a logit by 0.6 at most; a choice whose lead is larger than this must not change.
constexpr double kNoise = 0.7;

const char* const kHarbour =
    "The harbour master wrote down every ship, its cargo and the hour of its arrival, for forty years, in the same blue ledger. When the "
    "ledger was full he bought another one at the shop behind the church, and when he retired there were sixty of them on a shelf. Nobody "
    "had read one. The new master was a young woman from the north who had worked on tugs, and on her first evening she took the oldest "
    "down and began. She learned that the winter of the great ice had closed the port for nineteen days, that a ship with oranges had "
    "waited outside until the fruit was worthless, and that the captain had given it to the school. She learned which pilots drank, which "
    "owners paid late, and that the sandbank at the mouth moved east by the width of a house every seven years. By spring she could say "
    "from the wind alone which boats would come in, and the old men at the quay stopped laughing. What should she write on the first page "
    "of her own ledger, and why?";
const char* const kOrchard =
    "My grandmother kept an orchard of plum, pear and quince on a slope that faced the river, and she grafted every tree herself. She used "
    "a short knife with a handle of horn, strips of old linen and wax from her own bees. In a good year we carried forty baskets to the "
    "market on Saturdays and came home with flour, lamp oil and sometimes a book. In a bad year there was frost in May, and we sat up all "
    "night with small fires of wet straw so that the smoke lay over the blossom like a blanket. She said that a tree remembers how it was "
    "treated, and that a branch cut in anger never bears. I did not believe it, but I noticed that she sang when she pruned. The slope "
    "belongs to my brother now, who has put in a pump and a shed with a cold room, and the pears are larger than they were. Explain which "
    "of her habits still matter, and which of them can be given up without loss.";
const char* const kMachine =
    "The build of the parser fails on the second machine only, and only when the clock is set to summer time. The log shows that three of "
    "the tests read a file whose name holds the hour, and that the file is written by another process a moment before. On the first machine "
    "both processes take the hour from the same library, so they agree; on the second one an older copy of it lies in the path of the "
    "service and not in that of the shell. We have tried to remove the copy, but an update brings it back each night. Rebuilding all the "
    "packages takes two hours and nobody wants to do it before the release. A colleague proposes to put the hour in the environment, another "
    "one to give up names with an hour and to use a counter in a small database, and a third to skip the tests until autumn. List what "
    "speaks for and against each of them, then say what you would do first and how we would know that it worked.";

std::vector<Script> scripts() {
  const auto script = [](const char* system, const char* text, std::vector<int32_t> lengths) {
    std::istringstream in(text);
    Script out{.system = system, .words = {}, .prompt_tokens = std::move(lengths)};
    for (std::string word; in >> word;) out.words.push_back(word);
    return out;
  };
  return {script("You are a patient teller of stories about the sea.", kHarbour, {300, 430, 560}),
          script("Answer as a gardener who has worked outdoors all her life.", kOrchard, {340, 460, 620}),
          script("As an engineer, you answer in short numbered steps.", kMachine, {300, 600, 860})};
}

std::string model_path() {
  std::error_code ec;
  const auto file = [&](const std::string& path) { return std::filesystem::is_regular_file(path, ec) ? path : std::string(); };
  if (const char* set = std::getenv("KVTIDE_TEST_MODEL")) return file(set);
  const char* home = std::getenv("HOME");
  if (home == nullptr) return {};
  for (const char* name : {"SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"}) {
    if (auto path = file(std::string(home) + "/.cache/kvtide/models/" + name); !path.empty()) return path;
  }
  return {};
}

struct Arm {
  LayoutChoice layout;
  int64_t device_tokens;
  int64_t host_blocks;  // 0: no host tier
};

class Server {
 public:
  explicit Server(const Arm& arm) {
    engine::LlamaCppOptions options;
    options.model_path = model_path();
    options.n_gpu_layers = 0;
    options.threads = 2;
    options.ctx_size = kCtx;
    options.device_tokens = arm.device_tokens;
    options.layout = arm.layout;
    auto model = engine::load(options);
    if (!model) {
      ADD_FAILURE() << model.error().message;
      return;
    }
    std::unique_ptr<tier::Tier> host;
    if (arm.host_blocks > 0) {
      const int64_t block_bytes = model->engine->info().block_bytes;
      auto made = tier::HostTier::make(arm.host_blocks * block_bytes, block_bytes);
      if (!made) {
        ADD_FAILURE() << made.error().message;
        return;
      }
      host = std::move(*made);
    }
    auto engine = std::make_unique<engine::ChainEngine>(std::move(model->engine));
    engine_ = engine.get();
    auto started = Loop::start(std::move(engine), std::move(model->text), std::move(host), {.policy = "lru", .parallel = 1}, clock_);
    if (started) loop_ = std::move(*started);
  }

  bool up() const { return loop_ != nullptr; }
  Loop& loop() { return *loop_; }

  /// All sessions, turn by turn. With `follow` the prompts are those of another run, whatever is replied here.
  Played play(const Played* follow = nullptr, bool salted = false) {
    const std::vector<Script> all = scripts();
    std::vector<SessionClient> clients;
    size_t turns = 0;
    for (size_t s = 0; s < all.size(); ++s) {
      clients.emplace_back(*loop_, "session-" + std::to_string(s), all[s]);
      turns = std::max(turns, all[s].prompt_tokens.size());
    }
    Played out(all.size());
    for (size_t turn = 0; turn < turns; ++turn) {
      for (size_t s = 0; s < all.size(); ++s) {
        if (turn >= all[s].prompt_tokens.size()) continue;
        clock_.advance(2 * base::kSecond);
        auto prompt = follow == nullptr ? clients[s].next_prompt() : (*follow)[s][turn].prompt;
        out[s].push_back(clients[s].ask(std::move(prompt), salted ? "call " + std::to_string(order_.size()) : ""));
        order_.emplace_back(s, turn);
        if (testing::Test::HasFailure()) return out;
      }
    }
    expect_right_chains(out);
    return out;
  }

  ServiceStats stats() {
    std::promise<ServiceStats> got;
    const auto asked = loop_->stats([&](ServiceStats stats) { got.set_value(std::move(stats)); });
    EXPECT_TRUE(asked.has_value());
    return asked ? got.get_future().get() : ServiceStats{};
  }

 private:
  /// Every token was chosen over the KV of exactly its prompt and the reply before it.
  void expect_right_chains(const Played& played) {
    EXPECT_THAT(engine_->faults(), testing::IsEmpty());
    const auto& sampled = engine_->sampled();
    size_t at = 0;
    for (const auto& [session, turn] : order_) {
      const Reply& reply = played[session][turn];
      engine::ChainEngine::Chain chain = reply.prompt;
      for (size_t i = 0; i < reply.samples.size(); ++i, ++at) {
        ASSERT_LT(at, sampled.size());
        EXPECT_TRUE(sampled[at] == chain) << "session " << session << " turn " << turn << " token " << i;
        chain.push_back(reply.samples[i].token);
      }
    }
    EXPECT_EQ(at, sampled.size());
  }

  TestClock clock_;
  engine::ChainEngine* engine_ = nullptr;         // the loop's
  std::vector<std::pair<size_t, size_t>> order_;  // session and turn of each call
  std::unique_ptr<Loop> loop_;               // last: it uses the clock
};

/// What of a prompt is there when nothing was ever lost: the prompt and reply before it, without the token that was never computed.
int32_t known_tokens(const std::vector<Reply>& session, size_t turn) {
  return turn == 0 ? 0 : static_cast<int32_t>(session[turn - 1].prompt.size()) + SessionClient::kReplyTokens - 1;
}

void print(const char* name, const Comparison& c, const ServiceStats& stats) {
  std::printf("[  reuse   ] %s: %zu of %zu replies equal; tokens device %lld, host %lld, computed %lld; logprob noise %.2g\n", name,
              c.replies - c.differences.size(), c.replies, static_cast<long long>(stats.reused_device_tokens),
              static_cast<long long>(stats.reused_host_tokens), static_cast<long long>(stats.recomputed_tokens), c.noise);
  for (const Difference& d : c.differences) {
    std::printf("[  reuse   ]   session %zu turn %zu differs from token %zu on, margin %.3f\n", d.session, d.turn, d.position, d.margin);
  }
}

/// Nothing but what the noise of batches and places can do.
void expect_noise_only(const Comparison& c) {
  EXPECT_LT(c.noise, kNoise);
  for (const Difference& d : c.differences) {
    EXPECT_LT(d.margin, kNoise) << "session " << d.session << " turn " << d.turn << " token " << d.position;
  }
}

class ReuseEqualsRecompute : public testing::Test {
 protected:
  void SetUp() override {
    if (model_path().empty()) {
      GTEST_SKIP() << "SKIPPED: no model file. Set KVTIDE_TEST_MODEL to a GGUF file, or run 'kvtide model pull' for the default one.";
    }
  }

  /// Room for every session: nothing is ever evicted, every turn goes on in place.
  static Played play_with_room(LayoutChoice layout) {
    Server server({layout, 4 * kCtx, 0});
    if (!server.up()) return {};
    Played out = server.play();
    if (HasFailure()) return {};
    EXPECT_EQ(server.stats().evicted_device_blocks, 0);
    for (const auto& session : out) {
      for (size_t t = 0; t < session.size(); ++t) EXPECT_EQ(session[t].kv.device_tokens, known_tokens(session, t));
    }
    print(layout == LayoutChoice::kLanes ? "lanes, room for all" : "unified, room for all", compare(out, out), server.stats());
    return out;
  }

  static const Played& lanes_with_room() {
    static const Played played = play_with_room(LayoutChoice::kLanes);
    return played;
  }
};

/// Two lanes for three sessions in turn: whoever is next was evicted, and comes back in the other lane. The same tokens are computed in the
/// same batches as with room for all, so every number must be the same, to the last bit.
TEST_F(ReuseEqualsRecompute, ToTheLastBitWhenEveryTurnIsRestoredFromTheHostTier) {
  const Played& expected = lanes_with_room();
  ASSERT_FALSE(expected.empty());
  Server server({LayoutChoice::kLanes, 2 * kCtx, 128});
  ASSERT_TRUE(server.up());
  const Played played = server.play();
  ASSERT_FALSE(HasFailure());
  const Comparison c = compare(expected, played);
  const ServiceStats stats = server.stats();
  print("lanes, restored", c, stats);

  EXPECT_GT(stats.blocks_copied_in, 0);
  EXPECT_EQ(stats.byte_mismatches, 0);
  for (size_t s = 0; s < played.size(); ++s) {
    for (size_t t = 0; t < played[s].size(); ++t) {
      const KvReport& kv = played[s][t].kv;
      EXPECT_EQ(kv.host_tokens, known_tokens(played[s], t)) << "session " << s << " turn " << t;
      EXPECT_EQ(kv.recomputed_tokens, expected[s][t].kv.recomputed_tokens) << "session " << s << " turn " << t;
    }
  }
  EXPECT_TRUE(c.differences.empty());
  EXPECT_EQ(c.noise, 0);
}

/// One pool with room for one session and a bit: parts are evicted and come back in other cells, so sums over cells run in another order.
TEST_F(ReuseEqualsRecompute, WithinTheNoiseWhenCellsAreTightInOnePool) {
  const Played expected = play_with_room(LayoutChoice::kUnified);
  ASSERT_FALSE(expected.empty());
  Server server({LayoutChoice::kUnified, kCtx, 128});
  ASSERT_TRUE(server.up());
  const Played played = server.play(&expected);
  ASSERT_FALSE(HasFailure());
  const Comparison c = compare(expected, played);
  const ServiceStats stats = server.stats();
  print("unified, tight", c, stats);

  EXPECT_GT(stats.blocks_copied_in, 0);
  EXPECT_GT(stats.reused_host_tokens, 0);
  EXPECT_GT(stats.evicted_device_blocks, 0);
  EXPECT_EQ(stats.byte_mismatches, 0);
  expect_noise_only(c);
}

/// Every call under a salt of its own computes its whole prompt in one go: batches of another shape, so within the noise.
TEST_F(ReuseEqualsRecompute, WithinTheNoiseWithoutAnyReuse) {
  const Played& expected = lanes_with_room();
  ASSERT_FALSE(expected.empty());
  Server server({LayoutChoice::kLanes, 2 * kCtx, 0});
  ASSERT_TRUE(server.up());
  const Played played = server.play(&expected, true);
  ASSERT_FALSE(HasFailure());
  const Comparison c = compare(expected, played);
  const ServiceStats stats = server.stats();
  print("lanes, no reuse", c, stats);

  EXPECT_EQ(stats.reused_device_tokens + stats.reused_host_tokens, 0);
  expect_noise_only(c);
}

}  // namespace
}  // namespace kvtide::serving
