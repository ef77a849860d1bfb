// Start and stop, the inbox, admission and copies. Steps are in loop_step.cc; hints and views in loop_views.cc.
#include "serving/loop.h"

#include <algorithm>

#include "base/check.h"
#include "index/keys.h"

namespace kvtide::serving {
namespace {

constexpr size_t kInboxCalls = 4096;                         // calls under way; each is drained within a turn
constexpr size_t kReceiptsPerTenant = 4096;
constexpr base::DurationNs kTickNs = base::kSecond;
constexpr std::chrono::milliseconds kIdleWait{100};
constexpr size_t kInboxForRequests = kInboxCalls / 2;        // room that hints and questions never take: they cannot keep requests out

// The longest one sequence can be: where few cells are, the device is the limit.
int32_t length_max(const engine::EngineInfo& info) {
  return static_cast<int32_t>(std::min<int64_t>(info.seq_tokens_max, info.device_tokens));
}

session::SamConfig sam_config(const engine::EngineInfo& info, const tier::Tier* host, const LoopOptions& options) {
  session::SamConfig config;
  config.device = {info.layout == engine::Layout::kLanes, info.seqs, info.block_tokens, info.device_tokens, length_max(info), info.reuse};
  config.host_blocks = host == nullptr ? 0 : host->stats().slots;
  config.block_bytes = info.block_bytes;
  config.policy = options.policy;
  config.hints = options.hints;
  config.sessions_max = options.sessions_max;
  return config;
}

// All tiers are one memory to the shadow. Without reuse there is no cache to compare.
policy::ShadowConfig shadow_config(const engine::EngineInfo& info, const tier::Tier* host) {
  policy::ShadowConfig config;
  config.block_tokens = info.block_tokens;
  if (info.reuse) config.capacity_blocks = info.device_tokens / info.block_tokens + (host == nullptr ? 0 : host->stats().slots);
  return config;
}

}  // namespace

base::Result<std::unique_ptr<Loop>> Loop::start(std::unique_ptr<engine::Engine> engine, std::unique_ptr<engine::TextModel> text_model,
                                                std::unique_ptr<tier::Tier> host, LoopOptions options, const base::Clock& clock) {
  auto sam = session::Sam::make(sam_config(engine->info(), host.get(), options));
  if (!sam) return tl::make_unexpected(std::move(sam.error()));
  return std::unique_ptr<Loop>(new Loop(std::move(engine), std::move(text_model), std::move(host), std::move(options), std::move(*sam), clock));
}

Loop::Loop(std::unique_ptr<engine::Engine> engine, std::unique_ptr<engine::TextModel> text_model, std::unique_ptr<tier::Tier> host, LoopOptions options,
           std::unique_ptr<session::Sam> sam, const base::Clock& clock)
    : engine_(std::move(engine)),
      text_model_(std::move(text_model)),
      host_(std::move(host)),
      options_(std::move(options)),
      sam_(std::move(sam)),
      clock_(clock),
      copies_(*engine_, host_.get(), *sam_, clock_),
      memory_(*text_model_, options_.prompt_memory_bytes),
      receipts_(kReceiptsPerTenant),
      shadow_(shadow_config(engine_->info(), host_.get())),
      inbox_(kInboxCalls),
      thread_([this](std::stop_token stop) { run(std::move(stop)); }) {}

Loop::~Loop() { stop(std::chrono::milliseconds(0)); }

void Loop::stop(std::chrono::milliseconds deadline) {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const base::TimeNs end_ns = clock_.now() + std::chrono::duration_cast<std::chrono::nanoseconds>(deadline).count();
  // The loop looks at the deadline itself: this thread only waits for it to end. A full inbox is drained within a turn.
  while (!inbox_.try_push([this, end_ns] { stop_at_ns_ = end_ns; })) std::this_thread::yield();
  thread_.request_stop();
  thread_.join();
}

std::vector<Token> Loop::tokenize_prompt(const std::string& tenant, const std::string& text) { return memory_.tokenize(tenant, text); }

base::Status Loop::post(Call call) {
  if (stopping_) return base::error(base::Code::kUnavailable, "the server is stopping");
  if (inbox_.size() >= kInboxCalls - kInboxForRequests || !inbox_.try_push(std::move(call))) {
    return base::error(base::Code::kResourceExhausted, "too many calls are under way");
  }
  return {};
}

base::Result<RequestId> Loop::submit(GenerateRequest request, std::shared_ptr<Sink> sink) {
  const engine::EngineInfo& info = engine_->info();
  if (request.prompt.empty()) return base::error(base::Code::kInvalidArgument, "the prompt has no token");
  if (request.prompt.size() >= static_cast<size_t>(length_max(info))) {
    return base::error(base::Code::kInvalidArgument, "the prompt has " + std::to_string(request.prompt.size()) + " tokens; this server takes at most " +
                                                         std::to_string(length_max(info) - 1) + " (--ctx-size)");
  }
  for (Token token : request.prompt) {
    if (token < 0 || token >= info.vocab_tokens) return base::error(base::Code::kInvalidArgument, "prompt: token " + std::to_string(token) + " is not in the vocabulary");
  }
  for (Token token : request.forced_reply) {
    if (token < 0 || token >= info.vocab_tokens) {
      return base::error(base::Code::kInvalidArgument, "forced_reply: token " + std::to_string(token) + " is not in the vocabulary");
    }
  }
  if (stopping_) return base::error(base::Code::kUnavailable, "the server is stopping");
  if (waiting_.fetch_add(1) >= options_.queue_max) {
    waiting_.fetch_sub(1);
    rejected_.fetch_add(1);
    return base::error(base::Code::kResourceExhausted, "too many requests wait (--max-queue " + std::to_string(options_.queue_max) + ")");
  }
  const RequestId id(next_id_.fetch_add(1));
  const index::BlockKey root = index::root_key({request.tenant, request.cache_salt, info.fingerprint, info.block_tokens});
  std::vector<index::BlockKey> keys;
  if (info.reuse || options_.request_log != nullptr) keys = index::chain_keys(root, request.prompt, info.block_tokens);
  auto boxed = std::make_shared<GenerateRequest>(std::move(request));  // std::function copies; the request is moved out once
  const bool sent = inbox_.try_push([this, id, boxed, sink = std::move(sink), keys = std::move(keys), root]() mutable {
    accept(id, std::move(*boxed), std::move(sink), std::move(keys), root);
  });
  if (!sent) {
    waiting_.fetch_sub(1);
    if (stopping_) return base::error(base::Code::kUnavailable, "the server is stopping");
    return base::error(base::Code::kResourceExhausted, "too many calls are under way");
  }
  return id;
}

void Loop::cancel(RequestId id) {
  {
    std::lock_guard lock(cancels_mutex_);
    cancels_.push_back(id);
  }
  (void)inbox_.try_push([] {});  // wakes the loop; when the inbox is full it is awake
}

void Loop::run(std::stop_token stop) {
  while (true) {
    const bool worked = turn();
    if (stop.stop_requested()) {
      drain_inbox(false);  // the deadline came before the request to stop
      if (actives_.empty() || clock_.now() >= stop_at_ns_) break;
    }
    drain_inbox(!worked && !stop.stop_requested());
  }
  inbox_.close();
  for (Call& call : inbox_.drain()) call();
  std::vector<RequestId> left;
  for (const auto& [id, active] : actives_) left.push_back(id);
  for (RequestId id : left) fail(*actives_.at(id), {base::Code::kUnavailable, "the server stopped"});
}

void Loop::drain_inbox(bool wait) {
  // Cancels are taken before the calls: the submit that a cancel belongs to is then among these calls or was accepted before.
  std::vector<RequestId> cancels;
  {
    std::lock_guard lock(cancels_mutex_);
    cancels.swap(cancels_);
  }
  std::vector<Call> calls = wait && cancels.empty() ? inbox_.wait_and_drain(kIdleWait) : inbox_.drain();
  for (Call& call : calls) call();
  for (RequestId id : cancels) {
    const auto it = actives_.find(id);
    if (it == actives_.end()) continue;
    ++totals_.requests_cancelled;
    log_request(*it->second, FinishReason::kCancelled);
    const CoreTimer timer(*this);
    sam_->finish(id, session::Finish::kCancelled, it->second->generated, clock_.now());
    copies_.run();
    log_completed_receipts();
    drop(id);
  }
}

bool Loop::turn() {
  const base::TimeNs begin_ns = clock_.now();
  if (begin_ns - last_tick_ns_ >= kTickNs) {
    last_tick_ns_ = begin_ns;
    const CoreTimer timer(*this);
    sam_->tick(begin_ns);
    copies_.run();
  }
  drain_inbox(false);
  admit_waiting();
  run_copies();
  const bool stepped = step();
  log_completed_receipts();
  device_cells_peak_ = std::max(device_cells_peak_, sam_->sequences().cells_used());
  if (!stepped && sam_->prefetch_pending()) return true;
  if (stepped) totals_.loop_ns += clock_.now() - begin_ns;
  return stepped;
}

void Loop::accept(RequestId id, GenerateRequest request, std::shared_ptr<Sink> sink, std::vector<index::BlockKey> keys, index::BlockKey root) {
  auto owned = std::make_unique<Active>();
  Active& a = *owned;
  a.id = id;
  a.sink = std::move(sink);
  a.arrived_ns = clock_.now();
  a.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  a.text = ReplyText(request.stops);
  const int32_t room = length_max(engine_->info()) - a.prompt_tokens;
  if (request.max_tokens < 0 || request.max_tokens > room) request.max_tokens = room;
  ++totals_.requests_total;
  auto sampler = engine_->make_sampler(request.sampling);
  if (!sampler) {
    waiting_.fetch_sub(1);
    ++totals_.requests_failed;
    StreamEvent event{.kind = StreamEvent::Kind::kError, .error = std::move(sampler.error())};
    a.sink->on_event(std::move(event));
    return;
  }
  a.sampler = std::move(*sampler);
  // Penalties look at the last tokens only; a long prompt must not hold up the loop.
  const auto seen = std::min(request.prompt.size(), static_cast<size_t>(std::max(request.sampling.repeat_last_n, 0)));
  for (Token token : std::span(request.prompt).last(seen)) a.sampler->accept(token, false);
  session::Arrival arrival;
  arrival.id = id;
  arrival.tenant = request.tenant;
  if (options_.hints) arrival.identity = request.hints.identity;
  arrival.root = root;
  arrival.tokens = request.prompt;
  if (options_.request_log != nullptr) a.logged_keys = keys;
  if (!engine_->info().reuse) keys.clear();
  a.shadow_path = shadow_.sample(keys);
  arrival.keys = std::move(keys);
  arrival.max_new_tokens = request.max_tokens;
  arrival.prior_tools = request.prior_tools;
  {
    const CoreTimer timer(*this);
    sam_->arrive(std::move(arrival), a.arrived_ns);
  }
  copies_.run();
  a.request = std::move(request);
  for (const hint::Receipt& receipt : run_actions(a.request.tenant, a.request.hints)) a.hint_ids.push_back(receipt.hint_id);
  if (options_.schedule == Schedule::kAffinity) estimate(a);
  actives_.emplace(id, std::move(owned));
  waiting_line_.push_back(id);
}

void Loop::admit_waiting() {
  if (waiting_line_.empty()) return;
  if (options_.schedule == Schedule::kAffinity) {
    admit_by_affinity();
  } else {
    admit_by_arrival();
  }
}

void Loop::admit_by_arrival() {
  const base::TimeNs now_ns = clock_.now();
  bool passed_over = false;
  for (size_t i = 0; i < waiting_line_.size() && static_cast<int32_t>(running_.size()) < options_.parallel && !admission_stalls(now_ns);) {
    Active& a = *actives_.at(waiting_line_[i]);
    const session::Sam::Admission admission = try_admit(a);
    if (admission == session::Sam::Admission::kAdmitted) {
      waiting_line_.erase(waiting_line_.begin() + static_cast<std::ptrdiff_t>(i));
      waiting_.fetch_sub(1);
      running_.push_back(a.id);
      continue;
    }
    // Without any free sequence nobody behind fares better; and nobody is passed over for long.
    passed_over = passed_over || (admission == session::Sam::Admission::kWait && now_ns - a.arrived_ns > kPassedOverNs);
    if (passed_over) return;
    ++i;
  }
}

session::Sam::Admission Loop::try_admit(Active& a) {
  session::Sam::Admission admission;
  {
    const CoreTimer timer(*this);
    admission = sam_->admit(a.id, clock_.now());
  }
  const CopyExecutor::Loaded ignored = copies_.run();
  (void)ignored;
  if (admission != session::Sam::Admission::kAdmitted) return admission;
  a.started_ns = clock_.now();
  if (a.admitted_ns == 0) a.admitted_ns = a.started_ns;
  ++changes_;
  a.phase = Phase::kLoading;
  return admission;
}

bool Loop::decoding() const {
  return std::any_of(running_.begin(), running_.end(), [&](RequestId id) { return actives_.at(id)->phase == Phase::kDecode; });
}

// Blocks that one bite of copies may move. In lanes an import rewrites the whole lane, so it is done in one go.
int32_t Loop::bite_blocks(base::DurationNs left_ns) const {
  constexpr int32_t kAll = 1 << 20;
  if (left_ns < 0 || engine_->info().layout == engine::Layout::kLanes) return kAll;
  const double block_ns = sam_->costs().load_ns(engine_->info().block_bytes);
  return std::max(1, static_cast<int32_t>(static_cast<double>(left_ns) / std::max(block_ns, 1.0)));
}

bool Loop::load_some(Active& a, int32_t blocks_max) {
  const base::TimeNs now_ns = clock_.now();
  {
    const CoreTimer timer(*this);
    if (!sam_->next_load(a.id, blocks_max, now_ns)) {
      a.phase = Phase::kPrefill;
      compare_reuse(a);
      return false;
    }
  }
  const CopyExecutor::Loaded loaded = copies_.run();
  const CoreTimer timer(*this);
  a.load_ns += loaded.took_ns;
  sam_->loaded(a.id, loaded.blocks, loaded.fault, clock_.now());
  return true;
}

bool Loop::pump_prefetch(int32_t blocks_max) {
  {
    const CoreTimer timer(*this);
    if (!sam_->next_prefetch(blocks_max, clock_.now())) {
      copies_.run();
      return false;
    }
  }
  const CopyExecutor::Loaded loaded = copies_.run();
  const CoreTimer timer(*this);
  sam_->prefetch_loaded(loaded.blocks, loaded.fault, clock_.now());
  return true;
}

// Loads of admitted requests first, then prefetches, then early write-back. While somebody decodes, together within the budget.
void Loop::run_copies() {
  const bool bounded = decoding();
  const base::TimeNs begin_ns = clock_.now();
  auto left_ns = [&] { return bounded ? options_.copy_budget_ns - (clock_.now() - begin_ns) : base::DurationNs{-1}; };
  auto spent = [&] { return bounded && left_ns() <= 0; };
  auto bite = [&] { return bite_blocks(bounded ? std::max<base::DurationNs>(left_ns(), 0) : base::DurationNs{-1}); };
  bool loaded = false;  // one bite of loading a turn always goes, however small the budget: it must end
  for (RequestId id : in_order(Phase::kLoading)) {
    Active& a = *actives_.at(id);
    while (a.phase == Phase::kLoading && (!spent() || !loaded) && load_some(a, bite())) {
      loaded = true;
    }
  }
  while (!spent() && pump_prefetch(bite())) {
  }
  // Nobody waits for a write-back: one bite, then the next step.
  if (!spent()) {
    bool more;
    {
      const CoreTimer timer(*this);
      more = sam_->next_write_back(bounded ? bite() : 64, clock_.now());
    }
    if (more) copies_.run();
  }
  copies_.run();
  if (bounded) totals_.copy_stall_ns_max = std::max(totals_.copy_stall_ns_max, clock_.now() - begin_ns);
}

}  // namespace kvtide::serving
