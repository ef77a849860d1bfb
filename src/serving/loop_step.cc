// One forward pass and what comes of it: the batch, the step, the tokens, the end of a reply.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "serving/loop.h"

namespace kvtide::serving {
namespace {

constexpr int32_t kChunkMin = 16;  // prompt tokens in a chunk, however tight decoders are

}  // namespace

// A cell for the next token of `a`; when nothing idle can be evicted, the request admitted last gives way. False: `a` itself must end or wait.
bool Loop::make_room_to_decode(Active& a) {
  while (true) {
    bool room;
    {
      const CoreTimer timer(*this);
      room = sam_->reserve(a.id, 1, clock_.now());
    }
    copies_.run();
    if (room) return true;
    if (sam_->length(a.id) + 1 > engine_->info().seq_tokens_max) return false;
    const RequestId youngest = running_.back();
    if (running_.size() == 1) return false;
    Active& victim = *actives_.at(youngest);
    ++totals_.preemptions;
    {
      const CoreTimer timer(*this);
      sam_->preempt(youngest, clock_.now());
    }
    copies_.run();
    victim.resuming = victim.resuming || victim.phase == Phase::kDecode;  // its pending token stays pending, however often it gives way
    victim.phase = Phase::kWaiting;
    progress_ = true;
    ++changes_;
    running_.pop_back();
    waiting_line_.push_front(youngest);
    waiting_.fetch_add(1);
    if (youngest == a.id) return false;
  }
}

// The most prompt tokens at depth `at` that are predicted to take no longer than `left_ns`; one minimal chunk if even that takes longer.
int32_t Loop::tokens_within(double left_ns, int32_t at, int32_t tokens_max) const {
  int32_t fits = std::min(kChunkMin, tokens_max);
  int32_t over = tokens_max + 1;
  while (over - fits > 1) {
    const int32_t middle = fits + (over - fits) / 2;
    (sam_->costs().prefill_ns(middle, at) <= left_ns ? fits : over) = middle;
  }
  return fits;
}

std::vector<Loop::BatchItem> Loop::build_batch() {
  std::vector<BatchItem> batch;
  int32_t budget = engine_->info().batch_tokens_max;
  const std::vector<RequestId> order = running_;
  for (RequestId id : order) {
    Active& a = *actives_.at(id);
    if (a.phase != Phase::kDecode || budget == 0) continue;
    if (!make_room_to_decode(a)) {
      if (a.phase == Phase::kDecode) finish(a, FinishReason::kLength);
      continue;
    }
    batch.push_back({&a, 1, true, false});
    --budget;
  }
  // A request that was preempted while the batch was built is not in it.
  std::erase_if(batch, [](const BatchItem& item) { return item.active->phase != Phase::kDecode; });
  const bool decoders = !batch.empty();
  // Prompt chunks share the time of one step: calls in the inbox wait that long, and so do decoders.
  double left_ns = static_cast<double>(decoders ? options_.decode_stall_ns : options_.step_max_ns);
  for (RequestId id : in_order(Phase::kPrefill)) {
    if (budget == 0) break;
    Active& a = *actives_.at(id);
    const auto total = static_cast<int32_t>(sam_->tokens(id).size());
    const int32_t at = sam_->length(id);
    const int32_t count = tokens_within(left_ns, at, std::min(total - at, budget));
    batch.push_back({&a, count, at + count == total, true});
    budget -= count;
    left_ns -= sam_->costs().prefill_ns(count, at);
    if (left_ns <= 0) break;
  }
  return batch;
}

bool Loop::step() {
  const std::vector<BatchItem> batch = build_batch();
  if (batch.empty()) return false;
  std::vector<engine::StepItem> items;
  items.reserve(batch.size());
  for (const BatchItem& item : batch) {
    Active& a = *item.active;
    if (!item.prefill) sam_->append(a.id, a.pending);
    const int32_t pos = sam_->length(a.id);
    items.push_back({sam_->sequence(a.id), pos, sam_->tokens(a.id).subspan(static_cast<size_t>(pos), static_cast<size_t>(item.count)), item.last});
  }
  const base::TimeNs begin_ns = clock_.now();
  const base::Status stepped = engine_->step(items);
  const base::TimeNs end_ns = clock_.now();
  if (!stepped) {
    if (batch.size() == 1) {
      fail(*batch[0].active, stepped.error());
    } else {
      step_alone(batch, items);
    }
    return true;
  }
  {
    const CoreTimer timer(*this);
    note_prefill_cost(batch, end_ns - begin_ns);
    for (const BatchItem& item : batch) sam_->extend(item.active->id, item.count, end_ns);
  }
  // Tokens first: a finished request cuts sequences, and logits live until the next step only.
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].last) emit_token(*batch[i].active, i);
  }
  copies_.run();
  return true;
}

// One prompt's chunk tells what a token costs. A few decoders beside it hardly count, and where somebody always decodes nothing else would.
void Loop::note_prefill_cost(const std::vector<BatchItem>& batch, base::DurationNs took_ns) {
  constexpr size_t kMostly = 8;  // prompt tokens for each decoder
  const BatchItem& chunk = batch.back();
  const size_t others = batch.size() - 1;
  if (!chunk.prefill || static_cast<size_t>(chunk.count) < kMostly * others || (others > 0 && batch[others - 1].prefill)) return;
  sam_->costs().note_prefill(chunk.count, sam_->length(chunk.active->id), took_ns);
}

// A step failed, so nobody advanced. Each goes again without the others: only those whose own work cannot be done fail.
void Loop::step_alone(const std::vector<BatchItem>& batch, const std::vector<engine::StepItem>& items) {
  for (size_t i = 0; i < batch.size(); ++i) {
    Active& a = *batch[i].active;
    if (base::Status stepped = engine_->step(std::span(items).subspan(i, 1)); !stepped) {
      fail(a, std::move(stepped.error()));
      continue;
    }
    {
      const CoreTimer timer(*this);
      sam_->extend(a.id, batch[i].count, clock_.now());
    }
    if (batch[i].last) emit_token(a, 0);
    copies_.run();
  }
}

void Loop::emit_token(Active& a, size_t item) {
  const base::TimeNs now_ns = clock_.now();
  if (a.phase == Phase::kPrefill) {
    progress_ = true;
    ++changes_;
  }
  if (a.phase == Phase::kPrefill && a.resuming) {
    // Its pending token was sampled before it was preempted; the prompt was recomputed only to go on from there.
    a.resuming = false;
    a.phase = Phase::kDecode;
    return;
  }
  a.phase = Phase::kDecode;
  if (a.first_token_ns == 0) a.first_token_ns = now_ns;
  const bool forced = !a.request.forced_reply.empty();
  engine::Sample sample;
  if (forced) {
    sample.token = a.request.forced_reply[static_cast<size_t>(a.generated)];
    a.sampler->accept(sample.token, true);
  } else {
    sample = a.sampler->sample(item);
  }
  a.pending = sample.token;
  const bool end = !forced && text_model_->is_end(sample.token) && !a.request.sampling.ignore_eos;
  if (end) return finish(a, FinishReason::kStop);
  ++a.generated;
  ++totals_.generated_tokens;
  a.raw_reply += text_model_->piece(sample.token, true);
  // Markers of tool calls are special tokens in some models: a parser needs to see them, a person who asked for plain text does not.
  StreamEvent event{.kind = StreamEvent::Kind::kToken, .text = a.text.add(text_model_->piece(sample.token, a.request.special_text)), .tokens = a.generated};
  if (a.request.sampling.top_logprobs >= 0) event.sample = std::move(sample);
  a.sink->on_event(std::move(event));
  if (a.text.stopped()) return finish(a, FinishReason::kStop);
  if (forced && a.generated == static_cast<int32_t>(a.request.forced_reply.size())) return finish(a, FinishReason::kStop);
  if (a.generated >= a.request.max_tokens) finish(a, FinishReason::kLength);
}

KvReport Loop::report(const Active& a, base::TimeNs now_ns) const {
  const session::Reuse reuse = sam_->reuse(a.id);
  KvReport kv;
  if (const session::SessionId sid = sam_->session_of(a.id); sid.valid()) {
    const session::Session& s = sam_->sessions().at(sid);
    kv.session_id = s.name;
    kv.session_derived = s.derived;
    kv.generation = s.generation;
  }
  kv.prompt_tokens = reuse.prompt;
  kv.device_tokens = reuse.device;
  kv.host_tokens = reuse.host;
  kv.recomputed_tokens = reuse.prompt - reuse.device - reuse.host;
  kv.compulsory_tokens = reuse.compulsory;
  auto ms = [](base::DurationNs ns) { return static_cast<double>(ns) * 1e-6; };
  kv.load_ms = ms(a.load_ns);
  kv.queue_ms = ms(a.admitted_ns - a.arrived_ns);
  const base::TimeNs first_ns = a.first_token_ns == 0 ? now_ns : a.first_token_ns;
  kv.prompt_ms = ms(first_ns - a.admitted_ns);
  kv.predicted_ms = ms(now_ns - first_ns);
  switch (reuse.miss) {
    case session::Miss::kNone: kv.miss = MissReason::kNone; break;
    case session::Miss::kFirstDifference: kv.miss = MissReason::kFirstDifference; break;
    case session::Miss::kEvicted: kv.miss = MissReason::kEvicted; break;
    case session::Miss::kNeverStored: kv.miss = MissReason::kNeverStored; break;
    case session::Miss::kOtherSalt: kv.miss = MissReason::kOtherSalt; break;
    case session::Miss::kSlowerThanRecompute: kv.miss = MissReason::kSlowerThanRecompute; break;
    case session::Miss::kFailedLoad: kv.miss = MissReason::kFailedLoad; break;
  }
  kv.miss_token = reuse.miss_token;
  kv.miss_rule = index::loss_name(reuse.loss);
  return kv;
}

// What was generated, so that its text comes back as these tokens. The last token was never fed, but it is part of the text.
void Loop::remember(const Active& a) {
  // After a stop string the client was not shown all that was generated.
  if (a.request.prompt_text.empty() || a.raw_reply.empty() || a.text.stopped()) return;
  const std::span<const int32_t> fed = sam_->tokens(a.id);
  std::vector<Token> tokens(fed.begin(), fed.end());
  if (static_cast<int32_t>(tokens.size()) < a.prompt_tokens + a.generated) tokens.push_back(a.pending);
  tokens.resize(static_cast<size_t>(a.prompt_tokens + a.generated));
  memory_.remember(a.request.tenant, a.request.prompt_text, a.raw_reply, std::move(tokens));
}

// Before the session manager forgets who asked.
void Loop::log_request(Active& a, FinishReason reason) {
  if (options_.request_log == nullptr || a.admitted_ns == 0) return;
  RequestRecord record;
  record.id = a.id;
  record.arrived_ns = a.arrived_ns;
  record.tenant = a.request.tenant;
  if (const session::SessionId sid = sam_->session_of(a.id); sid.valid()) {
    const session::Session& s = sam_->sessions().at(sid);
    record.session = s.name;
    record.parent = s.parent;
  }
  record.prompt_tokens = a.prompt_tokens;
  record.reply_tokens = a.generated;
  record.finish = reason;
  record.keys = std::move(a.logged_keys);
  options_.request_log->finished(std::move(record));
}

// Once a request, when all that it reuses is on the device.
void Loop::compare_reuse(Active& a) {
  if (std::exchange(a.compared, true)) return;
  const base::TimeNs begin_ns = clock_.now();
  const session::Reuse reuse = sam_->reuse(a.id);
  shadow_.admitted({a.request.tenant, a.shadow_path, reuse.prompt, reuse.device + reuse.host}, begin_ns);
  totals_.shadow_ns += clock_.now() - begin_ns;
}

// The blocks of the reply join those of the prompt: the next prompt extends them.
void Loop::note_finished_path(Active& a) {
  const base::SeqId seq = sam_->sequence(a.id);
  if (!a.compared || !seq.valid()) return;
  const base::TimeNs begin_ns = clock_.now();
  const std::vector<base::BlockId>& path = sam_->sequences().at(seq).path;
  const auto first = static_cast<size_t>(a.prompt_tokens / engine_->info().block_tokens);
  std::vector<index::BlockKey> keys;
  for (size_t i = first; i < path.size(); ++i) keys.push_back(sam_->blocks().at(path[i]).key);
  const std::vector<policy::SampledBlock> reply = shadow_.sample(keys, static_cast<int32_t>(first));
  a.shadow_path.insert(a.shadow_path.end(), reply.begin(), reply.end());
  shadow_.finished(a.shadow_path);
  totals_.shadow_ns += clock_.now() - begin_ns;
}

void Loop::finish(Active& a, FinishReason reason) {
  const base::TimeNs now_ns = clock_.now();
  StreamEvent event{.kind = StreamEvent::Kind::kDone, .tokens = a.generated, .finish = reason};
  event.text = a.text.flush();
  event.kv = report(a, now_ns);
  totals_.prompt_tokens += event.kv.prompt_tokens;
  totals_.reused_device_tokens += event.kv.device_tokens;
  totals_.reused_host_tokens += event.kv.host_tokens;
  totals_.recomputed_tokens += event.kv.recomputed_tokens;
  totals_.compulsory_tokens += event.kv.compulsory_tokens;
  remember(a);
  note_finished_path(a);
  log_request(a, reason);
  const RequestId id = a.id;
  recent_[id] = sam_->branch_ref(id);
  recent_order_.push_back(id);
  constexpr size_t kRecentMax = 4096;
  if (recent_order_.size() > kRecentMax) {
    recent_.erase(recent_order_.front());
    recent_order_.pop_front();
  }
  {
    const CoreTimer timer(*this);
    sam_->finish(id, reason == FinishReason::kLength ? session::Finish::kLength : session::Finish::kStop, a.generated, now_ns);
  }
  copies_.run();
  log_completed_receipts();
  for (const std::string& hint_id : a.hint_ids) {
    if (auto receipt = receipts_.find(a.request.tenant, hint_id)) event.receipts.push_back(std::move(*receipt));
  }
  a.sink->on_event(std::move(event));
  drop(id);
}

void Loop::fail(Active& a, base::Error error) {
  ++totals_.requests_failed;
  log_request(a, FinishReason::kError);
  const RequestId id = a.id;
  {
    const CoreTimer timer(*this);
    sam_->finish(id, session::Finish::kError, a.generated, clock_.now());
  }
  copies_.run();
  a.sink->on_event(StreamEvent{.kind = StreamEvent::Kind::kError, .error = std::move(error)});
  drop(id);
}

void Loop::drop(RequestId id) {
  if (std::erase(running_, id) == 0 && std::erase(waiting_line_, id) > 0) waiting_.fetch_sub(1);
  actives_.erase(id);
  progress_ = true;
  ++changes_;
}

}  // namespace kvtide::serving
