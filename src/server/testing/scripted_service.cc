#include "server/testing/scripted_service.h"

#include <chrono>

namespace kvtide::server::testing {
namespace {

constexpr std::chrono::seconds kPatience{10};

}  // namespace

ScriptedService::ScriptedService() {
  info.engine = "scripted";
  info.model_name = "plain-1";
  info.vocab_tokens = 256;
  info.seq_tokens_max = 1000;
  loop_ = std::thread([this] { run(); });
}

ScriptedService::~ScriptedService() { stop(std::chrono::milliseconds(0)); }

void ScriptedService::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !inbox_.empty(); });
    if (inbox_.empty()) return;
    const auto work = std::exchange(inbox_, {});
    lock.unlock();
    for (const auto& one : work) one();
    lock.lock();
  }
}

void ScriptedService::on_loop(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  inbox_.push_back(std::move(work));
  changed_.notify_all();
}

void ScriptedService::stop(std::chrono::milliseconds) {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (loop_.joinable()) loop_.join();
}

void ScriptedService::set_script(Script script) {
  std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void ScriptedService::refuse(std::optional<base::Error> error) {
  std::lock_guard lock(mutex_);
  refusal_ = std::move(error);
}

void ScriptedService::play(const Script& script, const std::shared_ptr<serving::Sink>& sink) {
  serving::StreamEvent last;
  if (script.error) {
    last.kind = serving::StreamEvent::Kind::kError;
    last.error = *script.error;
    return sink->on_event(std::move(last));
  }
  for (const std::string& piece : script.pieces) {
    serving::StreamEvent event;
    event.text = piece;
    event.tokens = ++last.tokens;
    if (script.logprobs) {
      engine::Sample& sample = event.sample.emplace();
      sample.token = static_cast<unsigned char>(piece[0]);
      sample.logprob = -0.5F;
      sample.top = {{'x', -0.5F}, {'y', -1.5F}};
    }
    sink->on_event(std::move(event));
  }
  last.kind = serving::StreamEvent::Kind::kDone;
  last.finish = script.finish;
  last.kv = script.kv;
  last.receipts = script.receipts;
  sink->on_event(std::move(last));
}

base::Result<base::RequestId> ScriptedService::submit(serving::GenerateRequest request, std::shared_ptr<serving::Sink> sink) {
  std::unique_lock lock(mutex_);
  if (refusal_) return tl::make_unexpected(*refusal_);
  const base::RequestId id(submitted_.size());
  submitted_.push_back(std::move(request));
  const Script script = script_;
  if (script.hold) sinks_[id] = sink;
  changed_.notify_all();
  lock.unlock();
  if (!script.hold) on_loop([this, script, sink] { play(script, sink); });
  return id;
}

void ScriptedService::emit(base::RequestId id, const serving::StreamEvent& event) {
  std::unique_lock lock(mutex_);
  const auto found = sinks_.find(id);
  if (found == sinks_.end()) return;
  const auto sink = found->second;
  lock.unlock();
  on_loop([sink, event] { sink->on_event(event); });
}

void ScriptedService::emit_text(base::RequestId id, std::string text) {
  serving::StreamEvent event;
  event.text = std::move(text);
  event.tokens = 1;
  emit(id, event);
}

void ScriptedService::emit_done(base::RequestId id) {
  serving::StreamEvent event;
  event.kind = serving::StreamEvent::Kind::kDone;
  emit(id, event);
}

void ScriptedService::cancel(base::RequestId id) {
  std::lock_guard lock(mutex_);
  if (!keep_sinks_) sinks_.erase(id);
  ++cancelled_;
  changed_.notify_all();
}

void ScriptedService::note_tool_calls(base::RequestId id, std::vector<std::string> tools) {
  std::lock_guard lock(mutex_);
  noted_.emplace_back(id, std::move(tools));
}

std::vector<std::pair<base::RequestId, std::vector<std::string>>> ScriptedService::noted() const {
  std::lock_guard lock(mutex_);
  return noted_;
}

void ScriptedService::keep_sinks_after_cancel() {
  std::lock_guard lock(mutex_);
  keep_sinks_ = true;
}

std::vector<serving::GenerateRequest> ScriptedService::wait_submitted(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [&] { return submitted_.size() >= count; });
  return submitted_;
}

size_t ScriptedService::wait_cancelled(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [&] { return cancelled_ >= count; });
  return cancelled_;
}

size_t ScriptedService::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

std::vector<std::pair<std::string, hint::Hints>> ScriptedService::managed() const {
  std::lock_guard lock(mutex_);
  return managed_;
}

serving::Service::SessionQuery ScriptedService::last_query() const {
  std::lock_guard lock(mutex_);
  return last_query_;
}

std::vector<serving::Token> ScriptedService::tokenize_prompt(const std::string&, const std::string& text_to_read) {
  return text.tokenize(text_to_read, true, true);
}

base::Status ScriptedService::manage(const std::string& tenant, hint::Hints hints, ReceiptsCallback done) {
  std::vector<hint::Receipt> receipts;
  for (const hint::Action& action : hints.actions) {
    hint::Receipt receipt;
    receipt.hint_id = action.hint_id.empty() ? "made-up" : action.hint_id;
    receipt.verb = hint::verb_name(action.verb);
    receipt.session_id = action.identity.session_id;
    receipt.blocks = 3;
    receipt.bytes = 300;
    receipts.push_back(std::move(receipt));
  }
  {
    std::lock_guard lock(mutex_);
    if (refusal_) return tl::make_unexpected(*refusal_);
    managed_.emplace_back(tenant, std::move(hints));
  }
  on_loop([done = std::move(done), receipts = std::move(receipts)] { done(receipts); });
  return {};
}

base::Status ScriptedService::find_receipt(const std::string& tenant, std::string hint_id,
                                           std::function<void(std::optional<hint::Receipt>)> done) {
  on_loop([tenant, hint_id = std::move(hint_id), done = std::move(done)] {
    if (hint_id != "known of " + tenant) return done(std::nullopt);
    hint::Receipt receipt;
    receipt.hint_id = hint_id;
    receipt.verb = "offload";
    done(receipt);
  });
  return {};
}

base::Status ScriptedService::sessions(SessionQuery query, std::function<void(std::vector<serving::SessionSnapshot>, size_t)> done) {
  {
    std::lock_guard lock(mutex_);
    last_query_ = query;
  }
  std::vector<serving::SessionSnapshot> found;
  for (const auto& session : session_list) {
    const bool fits = (query.tenant.empty() || session.tenant == query.tenant) &&
                      (query.session_id.empty() || session.session_id == query.session_id);
    if (fits) found.push_back(session);
  }
  on_loop([found = std::move(found), done = std::move(done)] { done(found, found.size()); });
  return {};
}

base::Status ScriptedService::tiers(std::function<void(std::vector<serving::TierSnapshot>)> done) {
  on_loop([this, done = std::move(done)] { done(tier_list); });
  return {};
}

base::Status ScriptedService::stats(std::function<void(serving::ServiceStats)> done) {
  on_loop([this, done = std::move(done)] { done(stats_now); });
  return {};
}

}  // namespace kvtide::server::testing
