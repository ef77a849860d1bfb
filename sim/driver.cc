#include "sim/driver.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <queue>
#include <tuple>

#include "base/check.h"
#include "base/random.h"
#include "session/sam.h"

namespace kvtide::sim {
namespace {

using base::kSecond;
using base::TimeNs;

// A block of the trace is a few cells: the last cell of a prompt never fills a block, so that all full blocks can be reused.
constexpr int32_t kCells = 16;
constexpr int32_t kSequences = 2048;
constexpr char kTenant[] = "trace";
constexpr TimeNs kBackgroundMaxNs = 60 * kSecond;  // of quiet time that is used for copies at once

index::BlockKey key_of(Node node) {
  index::BlockKey key{};
  base::Random random(node);
  for (size_t i = 0; i < key.size(); i += 8) {
    const uint64_t word = random.next();
    for (size_t b = 0; b < 8; ++b) key[i + b] = static_cast<uint8_t>(word >> (8 * b));
  }
  return key;
}

/// Blocks at the end of `path` that were not seen before; they are now.
int64_t count_fresh(const std::vector<Node>& path, std::vector<uint8_t>& seen) {
  int64_t fresh = 0;
  for (size_t d = path.size(); d > 0 && seen[path[d - 1]] == 0; --d) {
    seen[path[d - 1]] = 1;
    ++fresh;
  }
  return fresh;
}

/// Counts a request whose prompt has `blocks` full blocks, `fresh` of them new. What is recomputed of it is the caller's to add.
void count_request(DriverResult& result, const TraceRequest& request, int64_t blocks, int64_t fresh, int32_t block_tokens) {
  ++result.requests;
  result.prompt_tokens += request.prompt_tokens;
  result.block_events += blocks;
  result.compulsory_tokens += request.prompt_tokens - (blocks - fresh) * block_tokens;
}

double normal(base::Random& random) {  // Box and Muller
  const double u = std::max(random.unit(), 1e-12);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * random.unit());
}

/// An end that was not recorded is a kind of its own to the manager, as a reply that was cut short.
session::Finish finish_of(Stop stop) {
  switch (stop) {
    case Stop::kToolUse: return session::Finish::kToolCalls;
    case Stop::kEnd: return session::Finish::kStop;
    case Stop::kUnknown: break;
  }
  return session::Finish::kLength;
}

/// What the server would have measured, in the manager's units: a block of the trace is kCells of its tokens.
void teach_costs(policy::CostModel& costs, const Machine& machine, int32_t block_tokens) {
  for (const int64_t blocks : {0, 500, 1000, 2000}) {
    const double took_s = machine.prefill_s(block_tokens, blocks * block_tokens);
    costs.note_prefill(kCells, blocks * kCells, static_cast<base::DurationNs>(took_s * 1e9));
  }
  costs.note_load(1'000'000'000, static_cast<base::DurationNs>(1e18 / machine.copy_bytes_per_s));
}

struct Told {
  TimeNs at_ns;
  uint64_t order;
  uint32_t session;
  hint::Verb verb;
  std::optional<base::DurationNs> expected_ns;
  bool operator<(const Told& other) const { return std::tie(at_ns, order) > std::tie(other.at_ns, other.order); }
};

class Driver {
 public:
  Driver(const Trace& trace, const Schedule& schedule, const DriverOptions& options, session::Sam& sam)
      : trace_(trace), schedule_(schedule), options_(options), sam_(sam), random_(options.seed), seen_(trace.parent.size(), 0) {}

  DriverResult run() {
    const int64_t capacity_blocks = options_.capacity_tokens / trace_.block_tokens;
    TimeNs ticked_ns = 0;
    for (size_t i = 0; i < schedule_.events.size(); ++i) {
      const TimeNs now_ns = schedule_.events[i].at_ns;
      tell_until(now_ns);
      if (now_ns - ticked_ns >= kSecond) {
        sam_.tick(now_ns);
        background(static_cast<double>(std::min(now_ns - ticked_ns, kBackgroundMaxNs)) * 1e-9, now_ns);
        ticked_ns = now_ns;
      }
      play(i, capacity_blocks);
      if (options_.check && i % 997 == 0) sam_.check_invariants(now_ns);
    }
    if (options_.check) sam_.check_invariants(schedule_.events.back().at_ns);
    result_.trace_hash = sam_.trace_hash();
    return result_;
  }

 private:
  void play(size_t i, int64_t capacity_blocks) {
    const Event& event = schedule_.events[i];
    const TraceRequest& request = trace_.sessions[event.session].requests[event.request];
    path_of(trace_, request, path_);
    const auto blocks = static_cast<int64_t>(path_.size());
    count_request(result_, request, blocks, count_fresh(path_, seen_), trace_.block_tokens);
    if (blocks > capacity_blocks) {
      ++result_.bypassed;
      result_.recomputed_tokens += request.prompt_tokens;
      return;
    }
    const base::RequestId id(static_cast<uint64_t>(i) + 1);
    session::Arrival arrival;
    arrival.id = id;
    arrival.tenant = kTenant;
    if (options_.hints != Hints::kNone) arrival.identity = identity(event.session);
    arrival.tokens.assign(static_cast<size_t>(blocks) * kCells, 0);
    arrival.tokens.push_back(static_cast<int32_t>(i) + 1);  // no two prompts end alike
    arrival.keys.reserve(path_.size());
    for (Node node : path_) arrival.keys.push_back(key_of(node));
    sam_.arrive(std::move(arrival), event.at_ns);
    execute(event.at_ns);
    const auto admitted = sam_.admit(id, event.at_ns);
    KV_CHECK(admitted == session::Sam::Admission::kAdmitted);
    execute(event.at_ns);
    while (sam_.next_load(id, INT32_MAX, event.at_ns)) {
      const int32_t blocks = execute(event.at_ns);
      result_.stall_s += copy_s(blocks);
      sam_.loaded(id, blocks, session::LoadFault::kNone, event.at_ns);
      execute(event.at_ns);
    }
    const int64_t reused = (sam_.reuse(id).device + sam_.reuse(id).host) / kCells * trace_.block_tokens;
    result_.recomputed_tokens += request.prompt_tokens - reused;
    if (options_.machine.host_tokens > 0) result_.stall_s += options_.machine.prefill_s(request.prompt_tokens - reused, reused);
    sam_.extend(id, static_cast<int32_t>(sam_.tokens(id).size()) - sam_.length(id), event.at_ns);
    const session::BranchRef branch = sam_.branch_ref(id);
    sam_.finish(id, finish_of(request.stop), request.reply_tokens, event.at_ns);
    if (request.tool != 0) sam_.note_tool_calls(branch, {trace_.tools[request.tool]});
    execute(event.at_ns);
    result_.bytes_per_block = std::max(result_.bytes_per_block, static_cast<double>(sam_.blocks().memory_bytes()) /
                                                                    std::max(1.0, static_cast<double>(sam_.blocks().size())));
    plan_hints(i);
  }

  double copy_s(int64_t blocks) const {
    return static_cast<double>(blocks) * trace_.block_tokens * options_.machine.token_bytes / options_.machine.copy_bytes_per_s;
  }
  int32_t blocks_in(double seconds) const { return static_cast<int32_t>(std::min(seconds / copy_s(1), 1e6)); }

  /// Does what the manager decided, and what follows from it. Returns the blocks of the last copy to the device.
  int32_t execute(TimeNs now_ns) {
    int32_t blocks_in = 0;
    const auto block_bytes = static_cast<int64_t>(trace_.block_tokens * options_.machine.token_bytes);
    for (auto decisions = sam_.take_decisions(); !decisions.empty(); decisions = sam_.take_decisions()) {
      for (const session::Decision& d : decisions) {
        const auto blocks = static_cast<int32_t>(d.blocks.size());
        if (d.kind == session::Decision::Kind::kCopyIn) {
          blocks_in = blocks;
          result_.copied_in_bytes += blocks * block_bytes;
          result_.host_tokens += static_cast<int64_t>(blocks) * trace_.block_tokens;
        }
        if (d.kind != session::Decision::Kind::kCopyOut) continue;
        result_.copied_out_bytes += blocks * block_bytes;
        for (base::BlockId block : d.blocks) sam_.copied_out(block, base::SlotId(next_slot_++), now_ns);
      }
    }
    return blocks_in;
  }

  /// Prefetches and early write-back, for as long as copying takes.
  void background(double seconds, TimeNs now_ns) {
    execute(now_ns);
    if (options_.machine.host_tokens == 0) return;
    int32_t left = blocks_in(seconds);
    while (left > 0 && sam_.next_prefetch(left, now_ns)) {
      const int32_t blocks = execute(now_ns);
      sam_.prefetch_loaded(blocks, session::LoadFault::kNone, now_ns);
      left -= blocks;
      execute(now_ns);
    }
    while (left > 0 && sam_.next_write_back(left, now_ns)) {
      const int64_t before = result_.copied_out_bytes;
      execute(now_ns);
      left -= static_cast<int32_t>(static_cast<double>(result_.copied_out_bytes - before) / (trace_.block_tokens * options_.machine.token_bytes));
    }
  }

  hint::Identity identity(uint32_t session) const {
    const TraceSession& s = trace_.sessions[session];
    return {s.name, s.parent < 0 ? "" : trace_.sessions[static_cast<size_t>(s.parent)].name};
  }

  void plan_hints(size_t i) {
    if (options_.hints == Hints::kNone) return;
    const Event& event = schedule_.events[i];
    const TimeNs next_ns = schedule_.next_ns[i];
    if (options_.hints == Hints::kWrong) return plan_wrong(event, next_ns);
    if (next_ns == kNever) return tell({event.at_ns, 0, event.session, hint::Verb::kEnd, {}});
    if (options_.hints != Hints::kResume) return;
    const double expected_s = static_cast<double>(next_ns - event.at_ns) * 1e-9 * std::exp(0.5 * normal(random_));
    tell({event.at_ns, 0, event.session, hint::Verb::kPause, static_cast<base::DurationNs>(expected_s * 1e9)});
    tell({std::max(event.at_ns, next_ns - kSecond), 0, event.session, hint::Verb::kPrefetch, {}});
  }

  // About somebody else: the end while it works, a long pause where there is a short one, a prefetch of what has ended. All a minute late.
  void plan_wrong(const Event& event, TimeNs next_ns) {
    const auto other = static_cast<uint32_t>(random_.below(trace_.sessions.size()));
    const uint32_t victim = random_.below(2) == 0 && !recent_.empty() ? recent_[random_.below(recent_.size())] : other;
    recent_.push_back(event.session);
    if (recent_.size() > 64) recent_.erase(recent_.begin());
    const TimeNs late_ns = event.at_ns + 60 * kSecond;
    if (next_ns == kNever) {
      tell({late_ns, 0, event.session, hint::Verb::kPrefetch, {}});
      return tell({late_ns, 0, victim, hint::Verb::kEnd, {}});
    }
    const double pause_s = std::max(1e-3, static_cast<double>(next_ns - event.at_ns) * 1e-9);
    tell({late_ns, 0, victim, hint::Verb::kPause, static_cast<base::DurationNs>(1e9 * std::min(3600.0, 100.0 / pause_s))});
    tell({late_ns, 0, victim, hint::Verb::kPrefetch, {}});
  }

  void tell(Told told) {
    told.order = ++order_;
    plans_.push(told);
  }

  void tell_until(TimeNs now_ns) {
    while (!plans_.empty() && plans_.top().at_ns <= now_ns) {
      const Told told = plans_.top();
      plans_.pop();
      hint::Action action;
      action.verb = told.verb;
      action.identity = identity(told.session);
      action.expected_ns = told.expected_ns;
      sam_.hint(kTenant, action, told.at_ns);
      // A prefetch has the second until the request comes; what it does not copy by then, the request loads.
      background(told.verb == hint::Verb::kPrefetch ? 1.0 : 0.0, told.at_ns);
      sam_.take_receipts();
      ++result_.hints_sent;
    }
  }

  const Trace& trace_;
  const Schedule& schedule_;
  const DriverOptions& options_;
  session::Sam& sam_;
  base::Random random_;
  std::vector<uint8_t> seen_;
  std::vector<Node> path_;
  std::vector<uint32_t> recent_;
  std::priority_queue<Told> plans_;
  uint64_t order_ = 0;
  uint32_t next_slot_ = 0;
  DriverResult result_;
};

}  // namespace

base::Result<DriverResult> drive(const Trace& trace, const Schedule& schedule, const DriverOptions& options) {
  const int64_t capacity_blocks = options.capacity_tokens / trace.block_tokens;
  if (capacity_blocks < 1) return base::error(base::Code::kInvalidArgument, "--capacity: less than one block");
  session::SamConfig config;
  config.device.seqs = kSequences;
  config.device.block_tokens = kCells;
  config.device.device_tokens = capacity_blocks * kCells + 1;  // the end of the running prompt; those of idle sequences take room from blocks
  config.device.seq_tokens_max = INT32_MAX;
  config.block_bytes = 1;
  if (options.machine.host_tokens > 0) {
    config.host_blocks = options.machine.host_tokens / trace.block_tokens;
    config.block_bytes = static_cast<int64_t>(trace.block_tokens * options.machine.token_bytes);
  }
  config.policy = options.policy;
  config.ideas = options.ideas;
  auto sam = session::Sam::make(config);
  if (!sam) return tl::make_unexpected(sam.error());
  if (options.machine.host_tokens > 0) teach_costs((*sam)->costs(), options.machine, trace.block_tokens);
  return Driver(trace, schedule, options, **sam).run();
}

DriverResult drive_entries(const Trace& trace, const Schedule& schedule, int64_t capacity_tokens) {
  struct Entry {
    std::vector<Node> path;
    uint32_t session;
  };
  const int64_t capacity_blocks = capacity_tokens / trace.block_tokens;
  std::list<Entry> entries;  // most recently used first
  std::map<uint32_t, std::list<Entry>::iterator> of_session;
  std::vector<uint8_t> seen(trace.parent.size(), 0);
  int64_t held = 0;
  DriverResult result;
  std::vector<Node> path;
  for (const Event& event : schedule.events) {
    const TraceRequest& request = trace.sessions[event.session].requests[event.request];
    path_of(trace, request, path);
    // The own copy, or the parent's for a first request: whichever shares more.
    size_t common = 0;
    for (const int64_t owner : {static_cast<int64_t>(event.session), static_cast<int64_t>(trace.sessions[event.session].parent)}) {
      const auto it = owner < 0 ? of_session.end() : of_session.find(static_cast<uint32_t>(owner));
      if (it == of_session.end()) continue;
      const std::vector<Node>& have = it->second->path;
      const auto differs = std::mismatch(path.begin(), path.end(), have.begin(), have.end()).first;
      common = std::max(common, static_cast<size_t>(differs - path.begin()));
    }
    count_request(result, request, static_cast<int64_t>(path.size()), count_fresh(path, seen), trace.block_tokens);
    result.recomputed_tokens += request.prompt_tokens - static_cast<int64_t>(common) * trace.block_tokens;
    if (const auto it = of_session.find(event.session); it != of_session.end()) {
      held -= static_cast<int64_t>(it->second->path.size());
      entries.erase(it->second);
    }
    held += static_cast<int64_t>(path.size());
    entries.push_front({path, event.session});
    of_session[event.session] = entries.begin();
    while (held > capacity_blocks && !entries.empty()) {
      held -= static_cast<int64_t>(entries.back().path.size());
      of_session.erase(entries.back().session);
      entries.pop_back();
    }
  }
  return result;
}

DriverResult drive_belady(const Trace& trace, const Schedule& schedule, const Future& future, int64_t capacity_tokens) {
  DriverResult result;
  for (size_t i = 0; i < schedule.events.size(); ++i) {
    const Event& event = schedule.events[i];
    count_request(result, trace.sessions[event.session].requests[event.request], future.blocks[i], future.fresh[i], trace.block_tokens);
  }
  const int64_t ends = result.prompt_tokens - result.block_events * trace.block_tokens;  // tokens that fill no block
  result.recomputed_tokens = belady_blocks(future, capacity_tokens / trace.block_tokens) * trace.block_tokens + ends;
  return result;
}

}  // namespace kvtide::sim
