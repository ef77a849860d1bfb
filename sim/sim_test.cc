// The oracle against brute force and against every policy; the driver against a naive cache; schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/random.h"
#include "sim/driver.h"
#include "sim/oracle.h"

namespace kvtide::sim {
namespace {

using base::kSecond;

/// Sessions that grow, are cut back and end, with a common prefix; blocks of one token, so that tokens and blocks are the same.
Trace random_trace(uint64_t seed, int sessions, int requests, int growth) {
  base::Random random(seed);
  Trace trace;
  trace.name = "random";
  trace.block_tokens = 1;
  NodeTree tree(trace.parent);
  const auto prefix = static_cast<int>(random.below(3));
  for (int s = 0; s < sessions; ++s) {
    TraceSession session{.name = "s" + std::to_string(s), .number = s, .parent = -1, .requests = {}};
    std::vector<uint64_t> labels;
    for (int i = 0; i < prefix; ++i) labels.push_back(static_cast<uint64_t>(i));
    base::TimeNs at_ns = 0;
    uint64_t fresh = 1000 * static_cast<uint64_t>(s + 1);
    for (int r = 0; r < requests; ++r) {
      if (random.below(6) == 0) labels.resize(random.below(labels.size() + 1));
      for (uint64_t i = 0; i <= random.below(static_cast<uint64_t>(growth)); ++i) labels.push_back(fresh++);
      Node leaf = kNoNode;
      for (const uint64_t label : labels) leaf = tree.child(leaf, 0, label);
      session.requests.push_back({.at_ns = at_ns,
                                  .prompt_tokens = static_cast<int32_t>(labels.size()),
                                  .reply_tokens = 1,
                                  .leaf = leaf,
                                  .stop = random.below(3) == 0 ? Stop::kEnd : Stop::kToolUse});
      at_ns += static_cast<base::TimeNs>(random.below(40) + 1) * kSecond;
    }
    trace.sessions.push_back(std::move(session));
  }
  return trace;
}

std::vector<std::vector<Node>> paths_of(const Trace& trace, const Schedule& schedule) {
  std::vector<std::vector<Node>> paths;
  for (const Event& event : schedule.events) {
    paths.emplace_back();
    path_of(trace, trace.sessions[event.session].requests[event.request], paths.back());
  }
  return paths;
}

/// The least cost over all ways to keep blocks: before each request any part of what is there is given up, closed under prefixes, so that its
/// path fits beside the rest. REQUIRES: every path fits.
double brute_force(const Trace& trace, const std::vector<std::vector<Node>>& paths, size_t capacity, DepthCost cost) {
  std::map<std::set<Node>, double> states{{{}, 0.0}};
  for (const auto& path : paths) {
    std::map<std::set<Node>, double> next;
    for (const auto& [held, paid] : states) {
      size_t hit = 0;
      while (hit < path.size() && held.contains(path[hit])) ++hit;
      const double total = paid + cost.of(static_cast<double>(hit), static_cast<double>(path.size()));
      // Nodes are numbered parents first, so a subset is closed when each node's parent was taken.
      std::vector<std::set<Node>> kept{{path.begin(), path.end()}};
      for (const Node node : held) {
        const size_t count = kept.size();
        for (size_t i = 0; i < count; ++i) {
          if (kept[i].contains(node) || kept[i].size() >= capacity) continue;
          if (trace.parent[node] != kNoNode && !kept[i].contains(trace.parent[node])) continue;
          kept.push_back(kept[i]);
          kept.back().insert(node);
        }
      }
      for (auto& set : kept) {
        const auto [it, fresh] = next.try_emplace(std::move(set), total);
        if (!fresh) it->second = std::min(it->second, total);
      }
    }
    states = std::move(next);
  }
  double best = 1e300;
  for (const auto& [held, paid] : states) best = std::min(best, paid);
  return best;
}

TEST(Oracle, BeladyIsWhatBruteForceFinds) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Trace trace = random_trace(seed, 3, 3, 2);
    const Schedule schedule = make_schedule(trace, {.lanes = 3, .seed = seed});
    const Future future = look_ahead(trace, schedule);
    const auto paths = paths_of(trace, schedule);
    for (const size_t capacity : {9U, 10U, 12U}) {
      EXPECT_EQ(belady_blocks(future, static_cast<int64_t>(capacity)), brute_force(trace, paths, capacity, {1, 0})) << seed << " " << capacity;
    }
  }
}

TEST(Oracle, TheCostBoundIsBelowTheBestAndCloseToIt) {
  double bounds = 0;
  double bests = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Trace trace = random_trace(seed, 3, 3, 2);
    const Schedule schedule = make_schedule(trace, {.lanes = 3, .seed = seed});
    const Future future = look_ahead(trace, schedule);
    const auto paths = paths_of(trace, schedule);
    for (const DepthCost cost : {DepthCost{1, 0}, DepthCost{1, 0.5}}) {
      const double best = brute_force(trace, paths, 9, cost);
      const double bound = cost_bound(future, 9, cost);
      EXPECT_LE(bound, best + 1e-6) << seed;
      bounds += bound;
      bests += best;
    }
  }
  EXPECT_GT(bounds, 0.9 * bests);
}

// An oracle that some policy beats is a bug.
TEST(Oracle, NoPolicyBeatsItAtAnyHintLevel) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    const Trace trace = random_trace(seed, 12, 12, 8);
    const Schedule schedule = make_schedule(trace, {.lanes = 4, .seed = seed});
    const Future future = look_ahead(trace, schedule);
    for (const int64_t capacity : {60, 120, 250}) {
      const int64_t optimum = belady_blocks(future, capacity);
      EXPECT_LE(cost_bound(future, capacity, {1, 0}, 50), static_cast<double>(optimum) + 1e-6);
      for (const char* policy : {"lru", "affinity", "rfc52113"}) {
        for (const Hints hints : {Hints::kNone, Hints::kEnd, Hints::kResume, Hints::kWrong}) {
          const auto result = drive(trace, schedule, {.policy = policy, .hints = hints, .capacity_tokens = capacity, .seed = seed, .check = true});
          ASSERT_TRUE(result) << result.error().message;
          EXPECT_GE(result->recomputed_tokens, optimum) << policy << " " << seed << " " << capacity;
          EXPECT_GE(result->recomputed_tokens, result->compulsory_tokens);
        }
      }
      EXPECT_GE(drive_entries(trace, schedule, capacity).recomputed_tokens, optimum);
    }
  }
}

/// Block LRU, tail first, written down as simply as can be.
int64_t naive_lru(const std::vector<std::vector<Node>>& paths, size_t capacity) {
  std::map<Node, std::pair<int64_t, int64_t>> held;  // last use; depth, negated: the deepest of one request goes first
  int64_t recomputed = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    size_t hit = 0;
    while (hit < paths[i].size() && held.contains(paths[i][hit])) ++hit;
    recomputed += static_cast<int64_t>(paths[i].size() - hit);
    for (size_t d = 0; d < paths[i].size(); ++d) held[paths[i][d]] = {static_cast<int64_t>(i), -static_cast<int64_t>(d)};
    while (held.size() > capacity) {
      held.erase(std::min_element(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
    }
  }
  return recomputed;
}

// Sequences hold whole paths, so the manager may cut a little more or less than a list of blocks would; over many traces it is LRU.
TEST(Driver, ItsLruIsBlockLru) {
  int64_t ours = 0;
  int64_t naive = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Trace trace = random_trace(seed, 12, 12, 8);
    const Schedule schedule = make_schedule(trace, {.lanes = 4, .seed = seed});
    ours += drive(trace, schedule, {.policy = "lru", .capacity_tokens = 150})->recomputed_tokens;
    naive += naive_lru(paths_of(trace, schedule), 150);
  }
  EXPECT_NEAR(static_cast<double>(ours) / static_cast<double>(naive), 1, 0.03);
}

TEST(Driver, EqualSeedsGiveEqualDecisions) {
  const Trace trace = random_trace(7, 10, 10, 8);
  const Schedule schedule = make_schedule(trace, {.lanes = 3, .seed = 5});
  const DriverOptions options{.policy = "affinity", .hints = Hints::kResume, .capacity_tokens = 40, .seed = 3};
  const auto a = drive(trace, schedule, options);
  const auto b = drive(trace, schedule, options);
  EXPECT_EQ(a->trace_hash, b->trace_hash);
  EXPECT_NE(a->trace_hash, drive(trace, schedule, {.policy = "lru", .hints = Hints::kResume, .capacity_tokens = 40, .seed = 3})->trace_hash);
}

TEST(Driver, WithRoomForEverythingOnlyTheCompulsoryIsComputed) {
  const Trace trace = random_trace(9, 8, 8, 8);
  const Schedule schedule = make_schedule(trace, {.lanes = 3, .seed = 5});
  for (const char* policy : {"lru", "affinity"}) {
    const auto result = drive(trace, schedule, {.policy = policy, .capacity_tokens = 100'000});
    EXPECT_EQ(result->recomputed_tokens, result->compulsory_tokens) << policy;
  }
}

TEST(Driver, BehindASmallDeviceAHostTierTurnsRecomputingIntoLoadsAndPrefetchesHideThem) {
  const Trace trace = random_trace(11, 20, 25, 8);
  const Schedule schedule = make_schedule(trace, {.lanes = 4, .seed = 5});
  const auto play = [&](const char* policy, Hints hints, int64_t host_tokens) {
    Machine machine;
    machine.host_tokens = host_tokens;
    return drive(trace, schedule, {.policy = policy, .hints = hints, .capacity_tokens = 120, .machine = machine, .check = true}).value();
  };
  for (const char* policy : {"lru", "affinity", "rfc52113"}) {
    const DriverResult small = play(policy, Hints::kNone, 1);
    const DriverResult large = play(policy, Hints::kNone, 100'000);
    EXPECT_GT(small.recomputed_tokens, small.compulsory_tokens) << policy;
    EXPECT_EQ(large.recomputed_tokens, large.compulsory_tokens) << policy;
    EXPECT_GT(large.host_tokens, 0) << policy;
    EXPECT_LT(large.stall_s, small.stall_s) << policy;
  }
  const DriverResult known = play("affinity", Hints::kEnd, 100'000);
  const DriverResult ahead = play("affinity", Hints::kResume, 100'000);
  EXPECT_EQ(ahead.recomputed_tokens, known.recomputed_tokens);
  EXPECT_LT(ahead.stall_s, known.stall_s);
}

TEST(Driver, AnIdeaThatIsLeftOutChangesDecisions) {
  const Trace trace = random_trace(7, 30, 30, 8);
  const Schedule schedule = make_schedule(trace, {.lanes = 4, .seed = 5});
  DriverOptions options{.policy = "affinity", .hints = Hints::kResume, .capacity_tokens = 150, .seed = 3};
  const uint64_t whole = drive(trace, schedule, options)->trace_hash;
  for (const std::string_view name : {"learning", "gittins", "pace", "superseded"}) {
    options.ideas = {};
    options.ideas.leave_out(*policy::find_idea(name));
    EXPECT_NE(drive(trace, schedule, options)->trace_hash, whole) << name;
  }
  EXPECT_FALSE(policy::find_idea("luck"));
}

TEST(Driver, SaysWhatIsWrongWithItsOptions) {
  const Trace trace = random_trace(9, 2, 2, 2);
  const Schedule schedule = make_schedule(trace, {});
  EXPECT_EQ(drive(trace, schedule, {.policy = "mru"}).error().code, base::Code::kInvalidArgument);
  EXPECT_EQ(drive(trace, schedule, {.capacity_tokens = 0}).error().code, base::Code::kInvalidArgument);
}

TEST(Schedule, SessionsRunBackToBackOnLanes) {
  const Trace trace = random_trace(3, 9, 4, 3);
  const Schedule schedule = make_schedule(trace, {.lanes = 2, .seed = 1, .select = Select::kOdd});
  EXPECT_EQ(schedule.order.size(), 4U);
  std::map<uint32_t, std::pair<base::TimeNs, base::TimeNs>> spans;
  for (size_t i = 0; i < schedule.events.size(); ++i) {
    const Event& e = schedule.events[i];
    EXPECT_EQ(trace.sessions[e.session].number % 2, 1);
    auto [it, fresh] = spans.try_emplace(e.session, e.at_ns, e.at_ns);
    it->second.second = e.at_ns;
    if (i > 0) {
      EXPECT_LE(schedule.events[i - 1].at_ns, e.at_ns);
    }
    const bool last = e.request + 1 == trace.sessions[e.session].requests.size();
    EXPECT_EQ(schedule.next_ns[i] == kNever, last);
  }
  for (const Event& e : schedule.events) {
    const auto running = std::count_if(spans.begin(), spans.end(), [&](const auto& s) { return s.second.first < e.at_ns && e.at_ns < s.second.second; });
    EXPECT_LE(running, 2);
  }
  EXPECT_NE(make_schedule(trace, {.lanes = 2, .seed = 1}).order, make_schedule(trace, {.lanes = 2, .seed = 2}).order);
}

}  // namespace
}  // namespace kvtide::sim
