#include "policy/shadow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <list>
#include <set>

#include "base/random.h"

namespace kvtide::policy {
namespace {

constexpr int32_t kBlock = 16;
const std::string kTenant = "red";

// Keys of a chain of numbered steps: equal where the steps so far are equal.
std::vector<index::BlockKey> chain(const std::vector<int>& steps, uint64_t root = 0) {
  std::vector<index::BlockKey> keys;
  uint64_t state = root;
  for (const int step : steps) {
    state = base::Random(state * 1'000'003 + static_cast<uint64_t>(step) + 1).next();
    index::BlockKey key{};
    std::memcpy(key.data(), &state, sizeof state);
    keys.push_back(key);
  }
  return keys;
}

int32_t tokens_of(const std::vector<index::BlockKey>& keys) { return static_cast<int32_t>(keys.size()) * kBlock + 1; }

/// A block LRU of one size as a plain list, newest first; of one prompt the first block is the newest.
class NaiveLru {
 public:
  explicit NaiveLru(size_t capacity) : capacity_(capacity) {}

  int64_t ask(const std::vector<index::BlockKey>& keys) {
    int64_t hits = 0;
    while (hits < static_cast<int64_t>(keys.size()) && std::count(blocks_.begin(), blocks_.end(), keys[hits]) > 0) ++hits;
    touch(keys);
    return hits;
  }
  void touch(const std::vector<index::BlockKey>& keys) {
    for (auto it = keys.rbegin(); it != keys.rend(); ++it) {
      blocks_.remove(*it);
      blocks_.push_front(*it);
    }
    while (blocks_.size() > capacity_) blocks_.pop_back();
  }

 private:
  const size_t capacity_;
  std::list<index::BlockKey> blocks_;
};

using Held = std::set<index::BlockKey>;

/// The most hits of any cache at all: every choice of what is held after each request is tried.
int64_t most_hits(const std::vector<std::vector<index::BlockKey>>& prompts, size_t capacity) {
  std::map<Held, int64_t> states{{{}, 0}};
  int64_t best = 0;
  for (const auto& keys : prompts) {
    std::map<Held, int64_t> next;
    for (const auto& [held, before] : states) {
      int64_t hits = 0;
      while (hits < static_cast<int64_t>(keys.size()) && held.contains(keys[hits])) ++hits;
      best = std::max(best, before + hits);
      Held choice = held;
      choice.insert(keys.begin(), keys.end());
      const std::vector<index::BlockKey> all(choice.begin(), choice.end());
      for (uint32_t bits = 0; bits < 1U << all.size(); ++bits) {
        // Holding less is never better: only full choices are tried.
        if (std::popcount(bits) != static_cast<int>(std::min(capacity, all.size()))) continue;
        Held kept;
        for (size_t i = 0; i < all.size(); ++i) {
          if ((bits >> i & 1U) != 0) kept.insert(all[i]);
        }
        int64_t& score = next[kept];
        score = std::max(score, before + hits);
      }
    }
    states = std::move(next);
  }
  return best;
}

/// Prompts of a few small sessions that share a beginning, grow, and now and then start anew.
std::vector<std::vector<int>> sessions_trace(base::Random& random, int requests, int sessions, int length_max) {
  std::vector<std::vector<int>> at(static_cast<size_t>(sessions));
  std::vector<std::vector<int>> out;
  for (int i = 0; i < requests; ++i) {
    std::vector<int>& s = at[random.below(at.size())];
    if (s.empty() || s.size() >= static_cast<size_t>(length_max) || random.below(8) == 0) s = {0};
    const uint64_t grow = 1 + random.below(2);
    for (uint64_t g = 0; g < grow && s.size() < static_cast<size_t>(length_max); ++g) s.push_back(static_cast<int>(random.below(4)));
    out.push_back(s);
  }
  return out;
}

int64_t blocks(int64_t tokens) { return tokens / kBlock; }

TEST(Shadow, SmallTracesGiveTheHitsOfAPlainLruAndOfTheBestCache) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    base::Random random(seed);
    const int64_t capacity = 2 * static_cast<int64_t>(1 + random.below(3));
    Shadow shadow({.capacity_blocks = capacity, .block_tokens = kBlock, .horizon = 1000});
    NaiveLru half(static_cast<size_t>(capacity / 2)), one(static_cast<size_t>(capacity)), two(static_cast<size_t>(2 * capacity));
    std::vector<std::vector<index::BlockKey>> prompts;
    int64_t half_hits = 0, one_hits = 0, two_hits = 0;
    for (const auto& steps : sessions_trace(random, 8, 2, 4)) {
      const auto keys = chain(steps);
      half_hits += half.ask(keys);
      one_hits += one.ask(keys);
      two_hits += two.ask(keys);
      prompts.push_back(keys);
      shadow.admitted({kTenant, shadow.sample(keys), tokens_of(keys), 0}, 0);
      const Regret r = shadow.report(0).all.total;
      ASSERT_EQ(blocks(r.hits(Rival::kLruHalf)), half_hits) << "seed " << seed;
      ASSERT_EQ(blocks(r.hits(Rival::kLru)), one_hits) << "seed " << seed;
      ASSERT_EQ(blocks(r.hits(Rival::kLruDouble)), two_hits) << "seed " << seed;
      ASSERT_GE(r.hits(Rival::kOptimal), r.hits(Rival::kLru)) << "seed " << seed;
    }
    ASSERT_EQ(blocks(shadow.report(0).all.total.hits(Rival::kOptimal)), most_hits(prompts, static_cast<size_t>(capacity))) << "seed " << seed;
  }
}

TEST(Shadow, RepliesMakeTheirChainRecentButCountNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    base::Random random(seed);
    Shadow shadow({.capacity_blocks = 24, .block_tokens = kBlock, .horizon = 1000});
    NaiveLru one(24);
    int64_t hits = 0, asked = 0;
    for (const auto& steps : sessions_trace(random, 300, 6, 10)) {
      const auto keys = chain(steps);
      hits += one.ask(keys);
      asked += tokens_of(keys);
      shadow.admitted({kTenant, shadow.sample(keys), tokens_of(keys), 0}, 0);
      if (random.below(2) == 0) continue;
      std::vector<int> more = steps;
      more.push_back(static_cast<int>(random.below(4)));
      one.touch(chain(more));
      shadow.finished(shadow.sample(chain(more)));
      const Regret r = shadow.report(0).all.total;
      ASSERT_EQ(blocks(r.hits(Rival::kLru)), hits);
      ASSERT_GE(r.hits(Rival::kOptimal), r.hits(Rival::kLru));
      ASSERT_EQ(r.prompt, asked);
      ASSERT_LE(r.compulsory + r.hits(Rival::kOptimal), r.prompt);
    }
  }
}

TEST(Shadow, WhatTheCacheDidBetterIsWonAndWorseIsLost) {
  Shadow shadow({.capacity_blocks = 4, .block_tokens = kBlock});
  const auto a = chain({1, 2, 3, 4}), b = chain({5, 6, 7, 8});
  auto ask = [&](const auto& keys, int32_t reused) { shadow.admitted({kTenant, shadow.sample(keys), tokens_of(keys), reused * kBlock}, 0); };
  ask(a, 0);
  ask(b, 0);
  ask(a, 4);  // LRU of 4 has only b
  ask(a, 1);  // and now a
  const Regret r = shadow.report(0).all.total;
  EXPECT_EQ(r.won_over(Rival::kLru), 4 * kBlock);
  EXPECT_EQ(r.lost_to(Rival::kLru), 3 * kBlock);
  EXPECT_EQ(r.won_over(Rival::kOptimal), 0);
  EXPECT_EQ(r.lost_to(Rival::kOptimal), 3 * kBlock);
  EXPECT_EQ(r.reused, 5 * kBlock);
  EXPECT_EQ(r.compulsory, 8 * kBlock + 4);  // and the last token of each prompt
}

TEST(Shadow, ThePromptsLastTokenIsAlwaysComputed) {
  Shadow shadow({.capacity_blocks = 100, .block_tokens = kBlock});
  const auto keys = chain({1, 2, 3});
  for (int i = 0; i < 2; ++i) shadow.admitted({kTenant, shadow.sample(keys), 3 * kBlock, 0}, 0);
  EXPECT_EQ(shadow.report(0).all.total.lost_to(Rival::kOptimal), 2 * kBlock);
}

// Sessions with heavy-tailed popularity over a shared trunk, many times the memory: enough that sampling is needed.
struct Big {
  explicit Big(const ShadowConfig& config) : shadow(config) {}
  void play(int requests) {
    base::Random random(7);
    NaiveStack lru(static_cast<size_t>(4096));
    std::vector<std::vector<int>> sessions(400);
    for (int i = 0; i < requests; ++i) {
      const double u = random.unit();
      auto& s = sessions[static_cast<size_t>(u * u * 400)];
      if (s.size() < 8 || s.size() > 120) {
        s = {1, 2, 3, 4, 5, 6, 7, 8};
        s.push_back(i + 100);
      }
      for (int g = 0; g < 4; ++g) s.push_back(static_cast<int>(random.below(1000)));
      const auto keys = chain(s);
      // The real cache: LRU of half the size, so that there is something to lose.
      const int32_t reused = lru.ask(keys);
      shadow.admitted({kTenant, shadow.sample(keys), tokens_of(keys), reused * kBlock}, 0);
      tracked_peak = std::max(tracked_peak, shadow.report(0).tracked_blocks);
    }
  }

  /// As NaiveLru, fast enough for big ones.
  class NaiveStack {
   public:
    explicit NaiveStack(size_t capacity) : capacity_(capacity) {}
    int32_t ask(const std::vector<index::BlockKey>& keys) {
      int32_t hits = 0;
      while (hits < static_cast<int32_t>(keys.size()) && at_.contains(keys[hits])) ++hits;
      for (auto it = keys.rbegin(); it != keys.rend(); ++it) {
        if (const auto known = at_.find(*it); known != at_.end()) by_time_.erase(known->second);
        at_[*it] = ++time_;
        by_time_[time_] = *it;
      }
      while (at_.size() > capacity_) {
        at_.erase(by_time_.begin()->second);
        by_time_.erase(by_time_.begin());
      }
      return hits;
    }

   private:
    const size_t capacity_;
    uint64_t time_ = 0;
    std::map<index::BlockKey, uint64_t> at_;
    std::map<uint64_t, index::BlockKey> by_time_;
  };

  Shadow shadow;
  int64_t tracked_peak = 0;
};

TEST(Shadow, SamplingStaysBoundedAndCloseToTheTruth) {
  Big exact({.capacity_blocks = 8192, .block_tokens = kBlock, .tracked_max = 1U << 20});
  Big sampled({.capacity_blocks = 8192, .block_tokens = kBlock, .tracked_max = 4096});
  exact.play(4000);
  sampled.play(4000);
  EXPECT_EQ(exact.shadow.report(0).rate, 1);
  EXPECT_LE(sampled.shadow.report(0).rate, 0.25);
  EXPECT_LE(sampled.tracked_peak, 4096);
  const Regret truth = exact.shadow.report(0).all.total, guess = sampled.shadow.report(0).all.total;
  EXPECT_EQ(truth.prompt, guess.prompt);
  EXPECT_EQ(truth.reused, guess.reused);
  for (const Rival rival : kRivals) {
    const double error = static_cast<double>(guess.hits(rival) - truth.hits(rival)) / static_cast<double>(truth.prompt);
    EXPECT_LT(std::abs(error), 0.02) << rival_name(rival) << ": 2 % of the prompt tokens";
  }
  EXPECT_GT(truth.hits(Rival::kLru), truth.reused);
  EXPECT_GT(truth.hits(Rival::kLruDouble), truth.hits(Rival::kLru));
  EXPECT_GT(truth.hits(Rival::kOptimal), truth.hits(Rival::kLru));
}

TEST(Shadow, BlocksOutsideTheWindowAreForgotten) {
  Shadow shadow({.capacity_blocks = 1000, .block_tokens = kBlock, .window = 8});
  auto ask = [&](int session) {
    const auto keys = chain({session, 1, 2});
    shadow.admitted({kTenant, shadow.sample(keys), tokens_of(keys), 0}, 0);
  };
  for (int i = 0; i < 100; ++i) ask(i);
  EXPECT_EQ(shadow.report(0).tracked_blocks, 8 * 3);
  ask(93);  // seven moments ago, and the ring has gone round many times
  EXPECT_EQ(shadow.report(0).all.total.lost_to(Rival::kOptimal), 3 * kBlock);
  ask(92);
  EXPECT_EQ(shadow.report(0).all.total.lost_to(Rival::kOptimal), 3 * kBlock);
}

TEST(Shadow, TenantsHaveTheirOwnFiguresUpToALimit) {
  Shadow shadow({.capacity_blocks = 100, .block_tokens = kBlock, .tenants_max = 2});
  for (int i = 0; i < 4; ++i) {
    const auto keys = chain({1, 2}, static_cast<uint64_t>(i));
    shadow.admitted({"t" + std::to_string(i), shadow.sample(keys), tokens_of(keys), 0}, 0);
  }
  const RegretReport report = shadow.report(0);
  ASSERT_EQ(report.tenants.size(), 3U);
  EXPECT_EQ(report.tenants[0].tenant, "other");
  EXPECT_EQ(report.tenants[0].total.prompt, 2 * 33);
  EXPECT_EQ(report.tenants[1].total.prompt, 33);
  EXPECT_EQ(report.all.total.prompt, 4 * 33);
}

TEST(Shadow, TheLastHourForgetsWhatIsOlder) {
  Shadow shadow({.capacity_blocks = 100, .block_tokens = kBlock});
  const auto keys = chain({1});
  constexpr base::TimeNs kMinute = 60 * base::kSecond;
  auto ask = [&](base::TimeNs now_ns) { shadow.admitted({kTenant, shadow.sample(keys), tokens_of(keys), 0}, now_ns); };
  ask(1000 * kMinute);
  ask(1030 * kMinute);
  EXPECT_EQ(shadow.report(1054 * kMinute).all.last_hour.prompt, 2 * 17);
  EXPECT_EQ(shadow.report(1061 * kMinute).all.last_hour.prompt, 17);
  EXPECT_EQ(shadow.report(1061 * kMinute).tenants[0].last_hour.prompt, 17);
  ask(1070 * kMinute);
  EXPECT_EQ(shadow.report(1071 * kMinute).all.last_hour.prompt, 2 * 17);
  EXPECT_EQ(shadow.report(5000 * kMinute).all.last_hour, Regret{});
  EXPECT_EQ(shadow.report(5000 * kMinute).all.total.prompt, 3 * 17);
}

TEST(Shadow, WithoutMemoryThereIsNothingToCompare) {
  Shadow shadow({.capacity_blocks = 0, .block_tokens = kBlock});
  const auto keys = chain({1, 2});
  EXPECT_TRUE(shadow.sample(keys).empty());
  shadow.admitted({kTenant, {}, tokens_of(keys), 0}, 0);
  EXPECT_EQ(shadow.report(0).all.total, Regret{});
}

// Not a bound that a slow machine could miss: the figure is recorded for whoever looks.
TEST(Shadow, CostOfARequest) {
  constexpr int kRequests = 60;
  for (const size_t tracked : {size_t{16384}, size_t{1} << 20}) {
    Shadow shadow({.capacity_blocks = 100'000, .block_tokens = kBlock, .tracked_max = tracked});
    std::vector<std::vector<index::BlockKey>> prompts;
    for (int i = 0; i < kRequests; ++i) {
      std::vector<int> steps(1000);
      for (size_t k = 0; k < steps.size(); ++k) steps[k] = k < 100 ? 0 : i;
      prompts.push_back(chain(steps));
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int turn = 0; turn < 2; ++turn) {
      for (const auto& keys : prompts) {
        const auto path = shadow.sample(keys);
        shadow.admitted({kTenant, path, tokens_of(keys), 0}, 0);
        shadow.finished(path);
      }
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    const double rate = shadow.report(0).rate;
    RecordProperty("us_per_1000_blocks_at_rate_" + std::to_string(rate), std::to_string(took.count() / (2 * kRequests)));
    EXPECT_GT(shadow.report(0).all.total.lost_to(Rival::kOptimal), 0);
  }
}

}  // namespace
}  // namespace kvtide::policy
