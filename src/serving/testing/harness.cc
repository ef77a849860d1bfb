#include "serving/testing/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>

#include "base/check.h"
#include "tier/host/host_tier.h"

namespace kvtide::serving {
namespace {

constexpr base::DurationNs kStepTokenNs = 100 * base::kMicrosecond;
constexpr base::DurationNs kCopyBlockNs = base::kMicrosecond;

// Calls `start` with a callback and waits for what it is called with.
template <typename T, typename Start>
T await(Start start) {
  auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  const base::Status sent = start([promise](T value) { promise->set_value(std::move(value)); });
  EXPECT_TRUE(sent.has_value()) << (sent ? "" : sent.error().message);
  if (!sent) return T{};
  const bool answered = future.wait_for(kPatience) == std::future_status::ready;
  EXPECT_TRUE(answered) << "the loop did not answer";
  return answered ? future.get() : T{};
}

}  // namespace

void Gate::allow(int64_t steps) {
  {
    std::lock_guard lock(mutex_);
    allowed_ = steps;
    if (steps > 0) held_ = false;
  }
  changed_.notify_all();
}

bool Gate::wait_held() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [this] { return held_; });
}

void Gate::pass() {
  std::unique_lock lock(mutex_);
  if (allowed_ <= 0) {
    held_ = true;
    changed_.notify_all();
    KV_CHECK(changed_.wait_for(lock, 2 * kPatience, [this] { return allowed_ > 0; }));
  }
  --allowed_;
}

base::Status TestEngine::export_blocks(base::SeqId seq, int32_t first_block, std::span<const std::span<std::byte>> out) {
  base::Status done = fake_.export_blocks(seq, first_block, out);
  clock_.advance(kCopyBlockNs * static_cast<int64_t>(out.size()));
  if (done) exported_ += static_cast<int64_t>(out.size());
  return done;
}

base::Status TestEngine::import_blocks(base::SeqId seq, int32_t first_block, std::span<const std::span<const std::byte>> in) {
  base::Status done = fake_.import_blocks(seq, first_block, in);
  clock_.advance(kCopyBlockNs * static_cast<int64_t>(in.size()));
  if (done) imported_ += static_cast<int64_t>(in.size());
  note_cells();
  return done;
}

base::Status TestEngine::step(std::span<const engine::StepItem> items) {
  gate_.pass();
  int64_t tokens = 0;
  bool bad = false;
  for (const engine::StepItem& item : items) {
    tokens += static_cast<int64_t>(item.tokens.size());
    bad = bad || (bad_token_ && std::find(item.tokens.begin(), item.tokens.end(), *bad_token_) != item.tokens.end());
  }
  clock_.advance(kStepTokenNs * tokens);
  exported_between_steps_max_ = std::max(exported_between_steps_max_, exported_ - std::exchange(exported_at_step_, exported_));
  if (bad) return base::error(base::Code::kInternal, "a token that cannot be computed");
  steps_.push_back({static_cast<int64_t>(items.size()), tokens, kStepTokenNs * tokens});
  step_items_max_ = std::max(step_items_max_, static_cast<int64_t>(items.size()));
  base::Status done = fake_.step(items);
  note_cells();
  return done;
}

namespace {

// Counts what it is told of prompts.
class CountingSampler final : public engine::Sampler {
 public:
  CountingSampler(std::unique_ptr<engine::Sampler> inner, int64_t& prompt_tokens) : inner_(std::move(inner)), prompt_tokens_(prompt_tokens) {}
  engine::Sample sample(size_t item) override { return inner_->sample(item); }
  void accept(Token token, bool generated) override {
    if (!generated) ++prompt_tokens_;
    inner_->accept(token, generated);
  }

 private:
  std::unique_ptr<engine::Sampler> inner_;
  int64_t& prompt_tokens_;
};

}  // namespace

base::Result<std::unique_ptr<engine::Sampler>> TestEngine::make_sampler(const engine::SamplingParams& params) {
  auto made = fake_.make_sampler(params);
  if (!made) return made;
  return std::make_unique<CountingSampler>(std::move(*made), prompt_tokens_accepted_);
}

void Collector::on_event(StreamEvent event) {
  if (hook) hook(event);
  {
    std::lock_guard lock(mutex_);
    text_ += event.text;
    tokens_ = std::max(tokens_, event.tokens);
    if (event.sample) samples_.push_back(*event.sample);
    if (event.kind != StreamEvent::Kind::kToken) ++ends_;
    last_ = std::move(event);
  }
  changed_.notify_all();
}

bool Collector::wait_end() const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [this] { return ends_ > 0; });
}

bool Collector::wait_tokens(int32_t count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return tokens_ >= count || ends_ > 0; }) && tokens_ >= count;
}

bool Collector::ended() const { return ends() > 0; }

std::string Collector::text() const {
  std::lock_guard lock(mutex_);
  return text_;
}

StreamEvent Collector::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

std::vector<engine::Sample> Collector::samples() const {
  std::lock_guard lock(mutex_);
  return samples_;
}

size_t Collector::ends() const {
  std::lock_guard lock(mutex_);
  return ends_;
}

Harness::Harness(Scene scene) {
  auto engine = std::make_unique<TestEngine>(scene.engine, clock_, gate_);
  engine_ = engine.get();
  std::unique_ptr<tier::Tier> host;
  if (scene.host_blocks > 0) {
    // Slots are aligned, so the budget may hold a few more or less than asked; scenarios read the true number from the tier.
    auto made = tier::HostTier::make(scene.host_blocks * engine->info().block_bytes, engine->info().block_bytes);
    KV_CHECK(made.has_value());
    host = std::move(*made);
  }
  if (scene.text_model == nullptr) scene.text_model = engine::make_fake_text_model();
  auto loop = Loop::start(std::move(engine), std::move(scene.text_model), std::move(host), scene.options, clock_);
  KV_CHECK(loop.has_value());
  loop_ = std::move(*loop);
}

Harness::~Harness() {
  gate_.open();
  loop_.reset();
}

Harness::Submitted Harness::submit(GenerateRequest request, std::function<void(const StreamEvent&)> hook) {
  Submitted out{{}, std::make_shared<Collector>()};
  out.reply->hook = std::move(hook);
  const auto id = loop_->submit(std::move(request), out.reply);
  EXPECT_TRUE(id.has_value()) << (id ? "" : id.error().message);
  if (id) out.id = *id;
  return out;
}

std::shared_ptr<Collector> Harness::ask(GenerateRequest request) {
  const Submitted asked = submit(std::move(request));
  EXPECT_TRUE(asked.reply->wait_end()) << "no reply";
  return asked.reply;
}

void Harness::on_loop(std::function<void()> f) {
  (void)await<bool>([&](auto done) {
    return loop_->stats([f, done](ServiceStats) {
      f();
      done(true);
    });
  });
}

void Harness::settle() {
  // A turn takes calls, then cancels: after two turns that answered, both of the first are done.
  for (int i = 0; i < 3; ++i) on_loop([] {});
}

ServiceStats Harness::stats() {
  return await<ServiceStats>([&](auto done) { return loop_->stats(done); });
}

TierSnapshot Harness::tier(const std::string& name) {
  const auto all = await<std::vector<TierSnapshot>>([&](auto done) { return loop_->tiers(done); });
  for (const TierSnapshot& one : all) {
    if (one.name == name) return one;
  }
  return {};
}

SessionSnapshot Harness::session(const std::string& id) {
  const auto found = await<std::vector<SessionSnapshot>>([&](auto done) {
    return loop_->sessions({.session_id = id}, [done](std::vector<SessionSnapshot> page, size_t) { done(std::move(page)); });
  });
  return found.empty() ? SessionSnapshot{} : found.front();
}

std::vector<hint::Receipt> Harness::manage(std::vector<hint::Action> actions, const std::string& tenant) {
  hint::Hints hints;
  hints.dialect = "native";
  hints.manage_request = true;
  hints.actions = std::move(actions);
  return await<std::vector<hint::Receipt>>([&](auto done) { return loop_->manage(tenant, hints, done); });
}

hint::Receipt Harness::manage_one(hint::Verb verb, const std::string& session, const std::string& hint_id) {
  auto receipts = manage({action(verb, session, hint_id)});
  EXPECT_EQ(receipts.size(), 1U);
  return receipts.empty() ? hint::Receipt{} : receipts.front();
}

std::optional<hint::Receipt> Harness::find_receipt(const std::string& hint_id, const std::string& tenant) {
  return await<std::optional<hint::Receipt>>([&](auto done) { return loop_->find_receipt(tenant, hint_id, done); });
}

void Harness::wait_written_back(const std::string& id) {
  // Each question wakes the loop for a turn, and a turn writes something back.
  for (int i = 0; i < 1000; ++i) {
    const SessionSnapshot s = session(id);
    if (s.blocks_host == s.blocks_claimed) return;
  }
  ADD_FAILURE() << "session " << id << " was not written back";
}

void Harness::expect_quiet() {
  settle();
  const ServiceStats s = stats();
  EXPECT_EQ(s.seqs_used, 0);
  EXPECT_EQ(s.leases, 0);
  EXPECT_EQ(s.requests_running, 0);
  EXPECT_EQ(s.requests_waiting, 0);
  EXPECT_EQ(s.byte_mismatches, 0);
  const TierSnapshot device = tier("device");
  EXPECT_LE(device.peak_bytes, device.budget_bytes);
  EXPECT_LE(device.used_bytes, device.peak_bytes);
  EXPECT_EQ(device.leases, 0);
  const TierSnapshot host = tier("host");
  EXPECT_LE(host.peak_bytes, host.budget_bytes);
  EXPECT_LE(host.used_bytes, host.peak_bytes);
  on_loop([this] {
    engine_->fake().check_invariants();
    EXPECT_LE(engine_->cells_peak(), engine_->info().device_tokens);
  });
}

std::vector<Token> bytes_of(std::string_view text) {
  std::vector<Token> tokens;
  for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

GenerateRequest greedy(std::string_view prompt, const std::string& session, int32_t max_tokens) {
  GenerateRequest request;
  request.prompt = bytes_of(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  request.hints.dialect = session.empty() ? "none" : "native";
  request.hints.identity.session_id = session;
  return request;
}

hint::Action action(hint::Verb verb, const std::string& session, const std::string& hint_id) {
  hint::Action out;
  out.verb = verb;
  out.identity.session_id = session;
  out.hint_id = hint_id;
  return out;
}

std::string fresh_reply(const std::string& prompt, int32_t max_tokens) {
  static std::map<std::pair<std::string, int32_t>, std::string> known;
  const auto key = std::make_pair(prompt, max_tokens);
  if (const auto it = known.find(key); it != known.end()) return it->second;
  Scene scene;
  scene.host_blocks = 0;
  Harness fresh(std::move(scene));
  return known[key] = fresh.ask(greedy(prompt, "", max_tokens))->text();
}

}  // namespace kvtide::serving
