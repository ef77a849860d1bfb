#include "sim/schedule.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "base/check.h"
#include "base/random.h"

namespace kvtide::sim {
namespace {

/// A root session and its sub-agents: sessions [begin, end) of the trace.
struct Tree {
  uint32_t begin = 0;
  uint32_t end = 0;
  base::TimeNs first_ns = 0;
  base::TimeNs last_ns = 0;
};

std::vector<Tree> trees_of(const Trace& trace, Select select) {
  std::vector<Tree> trees;
  for (uint32_t i = 0; i < trace.sessions.size(); ++i) {
    const TraceSession& session = trace.sessions[i];
    KV_CHECK(!session.requests.empty());
    if (!selected(session.number, select)) continue;
    if (session.parent < 0) trees.push_back({i, i + 1, session.requests.front().at_ns, session.requests.back().at_ns});
    Tree& tree = trees.back();
    tree.end = i + 1;
    tree.last_ns = std::max(tree.last_ns, session.requests.back().at_ns);
  }
  return trees;
}

}  // namespace

bool selected(int32_t number, Select select) {
  if (select == Select::kAll) return true;
  return (number % 2 == 1) == (select == Select::kOdd);
}

Schedule make_schedule(const Trace& trace, const ScheduleOptions& options) {
  KV_CHECK(options.lanes > 0);
  Schedule schedule;
  std::vector<Tree> trees = trees_of(trace, options.select);
  if (!trace.absolute) {
    base::Random random(options.seed);
    for (size_t i = trees.size(); i > 1; --i) std::swap(trees[i - 1], trees[random.below(i)]);
  }
  std::priority_queue<base::TimeNs, std::vector<base::TimeNs>, std::greater<>> free_at;
  for (int32_t lane = 0; lane < options.lanes; ++lane) free_at.push(0);
  for (const Tree& tree : trees) {
    base::TimeNs start_ns = 0;
    if (!trace.absolute) {
      start_ns = free_at.top() - tree.first_ns;
      free_at.pop();
      free_at.push(start_ns + tree.last_ns);
    }
    schedule.order.push_back(trace.sessions[tree.begin].number);
    for (uint32_t s = tree.begin; s < tree.end; ++s) {
      for (uint32_t r = 0; r < trace.sessions[s].requests.size(); ++r) {
        schedule.events.push_back({start_ns + trace.sessions[s].requests[r].at_ns, s, r});
      }
    }
  }
  std::sort(schedule.events.begin(), schedule.events.end(), [](const Event& a, const Event& b) {
    // A session that starts when another ends comes after that one's last request.
    const auto key = [](const Event& e) { return std::tuple(e.at_ns, e.request == 0, e.session, e.request); };
    return key(a) < key(b);
  });
  schedule.next_ns.assign(schedule.events.size(), kNever);
  std::vector<base::TimeNs> next_of(trace.sessions.size(), kNever);
  for (size_t i = schedule.events.size(); i-- > 0;) {
    schedule.next_ns[i] = next_of[schedule.events[i].session];
    next_of[schedule.events[i].session] = schedule.events[i].at_ns;
  }
  return schedule;
}

void path_of(const Trace& trace, const TraceRequest& request, std::vector<Node>& path) {
  path.clear();
  for (Node n = request.leaf; n != kNoNode; n = trace.parent[n]) path.push_back(n);
  std::reverse(path.begin(), path.end());
}

}  // namespace kvtide::sim
