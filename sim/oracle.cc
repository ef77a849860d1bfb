#include "sim/oracle.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/check.h"

namespace kvtide::sim {

Future look_ahead(const Trace& trace, const Schedule& schedule) {
  const size_t n = schedule.events.size();
  Future future;
  future.blocks.resize(n);
  future.fresh.resize(n);
  std::vector<uint32_t> next(trace.parent.size(), UINT32_MAX);
  std::vector<std::vector<Span>> of_event(n);
  std::vector<Node> path;
  auto request = [&](size_t i) -> const TraceRequest& {
    return trace.sessions[schedule.events[i].session].requests[schedule.events[i].request];
  };
  // Backwards: when event i is reached, next[] holds the first later user of every block.
  for (size_t i = n; i-- > 0;) {
    path_of(trace, request(i), path);
    future.blocks[i] = static_cast<uint32_t>(path.size());
    for (uint32_t d = 0; d < path.size(); ++d) {
      const uint32_t user = next[path[d]];
      next[path[d]] = static_cast<uint32_t>(i);
      if (user == UINT32_MAX) continue;
      auto& spans = of_event[i];
      if (!spans.empty() && spans.back().next == user && spans.back().end == d) {
        spans.back().end = d + 1;
      } else {
        spans.push_back({user, d, d + 1});
      }
    }
  }
  for (size_t i = 0; i < n; ++i) {
    future.first.push_back(static_cast<uint32_t>(future.spans.size()));
    future.spans.insert(future.spans.end(), of_event[i].begin(), of_event[i].end());
  }
  future.first.push_back(static_cast<uint32_t>(future.spans.size()));
  std::vector<uint8_t> seen(trace.parent.size(), 0);
  for (size_t i = 0; i < n; ++i) {
    for (Node node = request(i).leaf; node != kNoNode && seen[node] == 0; node = trace.parent[node]) {
      seen[node] = 1;
      ++future.fresh[i];
    }
  }
  return future;
}

// Resident blocks are kept by who wants them next: those that wait for event j are a run [begin, end) of depths of j's path. For if a block
// waits for j, so does everything behind it on j's path. A run grows at its front when an earlier event passes, and loses its end.
int64_t belady_blocks(const Future& future, int64_t capacity_blocks) {
  const size_t n = future.blocks.size();
  struct Run {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  std::vector<Run> waits_for(n);
  std::priority_queue<uint32_t> users;  // events that something waits for: the last one loses first; entries may be empty or double
  int64_t resident = 0;
  int64_t recomputed = 0;
  auto shrink_to = [&](int64_t most) {
    while (resident > most) {
      Run& run = waits_for[users.top()];
      const auto drop = static_cast<uint32_t>(std::min<int64_t>(resident - most, run.end - run.begin));
      run.end -= drop;
      resident -= drop;
      if (run.begin == run.end) users.pop();
    }
  };
  for (size_t i = 0; i < n; ++i) {
    Run& mine = waits_for[i];
    KV_CHECK(mine.begin == mine.end || mine.begin == 0);
    recomputed += future.blocks[i] - (mine.end - mine.begin);
    resident -= mine.end - mine.begin;
    mine = {};
    // Room for the prompt itself, unless it is longer than the cache.
    const int64_t need = future.blocks[i];
    shrink_to(need <= capacity_blocks ? capacity_blocks - need : capacity_blocks);
    for (uint32_t s = future.first[i]; s < future.first[i + 1]; ++s) {
      const Span& span = future.spans[s];
      Run& run = waits_for[span.next];
      if (run.begin == run.end) {
        run = {span.begin, span.end};
        users.push(span.next);
      } else {
        KV_CHECK(run.begin == span.end);
        run.begin = span.begin;
      }
      resident += span.end - span.begin;
    }
    shrink_to(capacity_blocks);
  }
  return recomputed;
}

// Keeping blocks from event i to their next use j takes room at every cut between two events of [i, j). With a price on each cut, keeping
// is worth it when its price is below the cost of recomputing; prices times capacity are paid back. By weak duality no policy does better.
double cost_bound(const Future& future, int64_t capacity_blocks, DepthCost cost, int32_t iterations) {
  const size_t n = future.blocks.size();
  double total = 0;
  double first_use = 0;
  for (size_t i = 0; i < n; ++i) {
    first_use += cost.of(future.blocks[i] - future.fresh[i], future.blocks[i]);
    for (uint32_t s = future.first[i]; s < future.first[i + 1]; ++s) total += cost.of(future.spans[s].begin, future.spans[s].end);
  }
  std::vector<double> price(n, 0);
  std::vector<double> sum(n + 1, 0);
  std::vector<double> change(n + 1, 0);
  double best = 0;
  double reach = total > 0 ? total : 1;  // guess of the gap to the optimum, for the step length
  for (int32_t round = 0; round < iterations; ++round) {
    for (size_t t = 0; t < n; ++t) sum[t + 1] = sum[t] + price[t];
    std::fill(change.begin(), change.end(), 0.0);
    double bound = -static_cast<double>(capacity_blocks) * sum[n];
    for (size_t i = 0; i < n; ++i) {
      for (uint32_t s = future.first[i]; s < future.first[i + 1]; ++s) {
        const Span& span = future.spans[s];
        const double rent = sum[span.next] - sum[i];  // of one block
        // Deeper blocks cost more to recompute: those from `from` on are kept.
        double from = span.begin;
        if (cost.slope > 0) {
          from = std::clamp(std::ceil((rent - cost.base) / cost.slope), static_cast<double>(span.begin), static_cast<double>(span.end));
        } else if (rent >= cost.base) {
          from = span.end;
        }
        bound += cost.of(span.begin, from) + rent * (span.end - from);
        change[i] += span.end - from;
        change[span.next] -= span.end - from;
      }
    }
    best = std::max(best, bound);
    double held = 0;
    double norm = 0;
    for (size_t t = 0; t < n; ++t) {
      held += change[t];
      sum[t] = held - static_cast<double>(capacity_blocks);  // subgradient
      norm += sum[t] > 0 || price[t] > 0 ? sum[t] * sum[t] : 0;
    }
    if (norm == 0) break;
    reach = round == 0 ? std::max(best, total / 10) : reach * 0.97;
    const double step = reach / norm;
    for (size_t t = 0; t < n; ++t) price[t] = std::max(0.0, price[t] + step * sum[t]);
    sum[0] = 0;
  }
  return first_use + best;
}

}  // namespace kvtide::sim
