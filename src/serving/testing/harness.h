// A real Loop on the fake engine, for scenarios: virtual time, an engine that can be held between steps, replies that can be waited for.
//
// Time passes only when the engine works: a fixed time a token and a short one a block copied. So loading always looks faster than
// computing, and nothing depends on the speed of the machine.
//
// Threading: the Harness belongs to the test thread; Gate and Collector are thread-safe. Every wait is bounded and fails the test.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/fake/fake_engine.h"
#include "engine/fake/fake_text_model.h"
#include "serving/loop.h"

namespace kvtide::serving {

inline constexpr std::chrono::seconds kPatience{30};

class VirtualClock final : public base::Clock {
 public:
  base::TimeNs now() const override { return now_ns_; }
  void advance(base::DurationNs by_ns) { now_ns_ += by_ns; }

 private:
  std::atomic<base::TimeNs> now_ns_{base::kSecond};
};

/// Holds the engine in front of a step until the test lets it go on.
class Gate {
 public:
  /// Lets `steps` more steps through, then holds.
  void allow(int64_t steps);
  void open() { allow(int64_t{1} << 60); }
  /// Whether the engine waits at the gate, within the test's patience.
  bool wait_held();
  void pass();  // engine side

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t allowed_ = int64_t{1} << 60;
  bool held_ = false;
};

class TestEngine final : public engine::Engine {
 public:
  TestEngine(const engine::FakeEngineConfig& config, VirtualClock& clock, Gate& gate) : fake_(config), clock_(clock), gate_(gate) {}
  engine::FakeEngine& fake() { return fake_; }
  int64_t exported() const { return exported_; }  // blocks
  int64_t imported() const { return imported_; }
  int64_t cells_peak() const { return cells_peak_; }
  int64_t step_items_max() const { return step_items_max_; }
  /// Blocks copied out between two steps, at most.
  int64_t exported_between_steps_max() const { return exported_between_steps_max_; }
  /// Prompt tokens that samplers were told of.
  int64_t prompt_tokens_accepted() const { return prompt_tokens_accepted_; }
  /// Steps that carry this token fail, until it is told otherwise.
  void fail_steps_with(std::optional<Token> token) { bad_token_ = token; }
  struct Step {
    int64_t items = 0;
    int64_t tokens = 0;
    base::DurationNs took_ns = 0;
  };
  const std::vector<Step>& steps() const { return steps_; }

  const engine::EngineInfo& info() const override { return fake_.info(); }
  void share(base::SeqId from, base::SeqId to, int32_t tokens) override { fake_.share(from, to, tokens); }
  void dedup(base::SeqId from, base::SeqId seq, int32_t begin, int32_t end) override { fake_.dedup(from, seq, begin, end); }
  void truncate(base::SeqId seq, int32_t tokens) override { fake_.truncate(seq, tokens); }
  base::Status export_blocks(base::SeqId seq, int32_t first_block, std::span<const std::span<std::byte>> out) override;
  base::Status import_blocks(base::SeqId seq, int32_t first_block, std::span<const std::span<const std::byte>> in) override;
  base::Status step(std::span<const engine::StepItem> items) override;
  base::Result<std::unique_ptr<engine::Sampler>> make_sampler(const engine::SamplingParams& params) override;
  std::span<const float> logits(size_t item) override { return fake_.logits(item); }
  int64_t cells_used() const override { return fake_.cells_used(); }

 private:
  void note_cells() { cells_peak_ = std::max(cells_peak_, fake_.cells_used()); }

  engine::FakeEngine fake_;
  VirtualClock& clock_;
  Gate& gate_;
  int64_t exported_ = 0, imported_ = 0, cells_peak_ = 0, step_items_max_ = 0;
  int64_t exported_at_step_ = 0, exported_between_steps_max_ = 0, prompt_tokens_accepted_ = 0;
  std::optional<Token> bad_token_;
  std::vector<Step> steps_;
};

/// Gathers one reply.
class Collector final : public Sink {
 public:
  /// Runs on the loop thread for each event, before it is gathered.
  std::function<void(const StreamEvent&)> hook;

  void on_event(StreamEvent event) override;
  bool wait_end() const;
  bool wait_tokens(int32_t count) const;

  bool ended() const;
  bool failed() const { return last().kind == StreamEvent::Kind::kError; }
  std::string text() const;
  StreamEvent last() const;
  std::vector<engine::Sample> samples() const;
  size_t ends() const;  // kDone and kError events; must never be more than one

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string text_;
  int32_t tokens_ = 0;
  size_t ends_ = 0;
  StreamEvent last_;
  std::vector<engine::Sample> samples_;
};

struct Scene {
  engine::FakeEngineConfig engine{.seqs = 8, .block_tokens = 16, .device_tokens = 4096, .seq_tokens_max = 512, .batch_tokens_max = 64};
  int64_t host_blocks = 256;  // 0: no host tier
  LoopOptions options;
  std::unique_ptr<engine::TextModel> text_model;  // null: the fake one
};

class Harness {
 public:
  explicit Harness(Scene scene = {});
  ~Harness();
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  Loop& loop() { return *loop_; }
  TestEngine& engine() { return *engine_; }  // loop thread only: see on_loop
  Gate& gate() { return gate_; }
  VirtualClock& clock() { return clock_; }

  struct Submitted {
    RequestId id;
    std::shared_ptr<Collector> reply;
  };
  Submitted submit(GenerateRequest request, std::function<void(const StreamEvent&)> hook = {});
  /// Submits and waits for the end.
  std::shared_ptr<Collector> ask(GenerateRequest request);

  /// Runs `f` on the loop thread and waits for it.
  void on_loop(std::function<void()> f);
  /// Returns when the loop has seen every submit and cancel made before.
  void settle();
  ServiceStats stats();
  TierSnapshot tier(const std::string& name);
  SessionSnapshot session(const std::string& id);
  std::vector<hint::Receipt> manage(std::vector<hint::Action> actions, const std::string& tenant = "default");
  hint::Receipt manage_one(hint::Verb verb, const std::string& session, const std::string& hint_id = "");
  std::optional<hint::Receipt> find_receipt(const std::string& hint_id, const std::string& tenant = "default");
  /// Waits until every block of the session has a host copy.
  void wait_written_back(const std::string& session);

  /// Nothing runs, waits or is leased; no budget was ever exceeded; the engine's own books are right.
  void expect_quiet();

 private:
  VirtualClock clock_;
  Gate gate_;
  TestEngine* engine_ = nullptr;
  std::unique_ptr<Loop> loop_;
};

std::vector<Token> bytes_of(std::string_view text);
/// Greedy, one token a byte, of the named session (empty: none named).
GenerateRequest greedy(std::string_view prompt, const std::string& session = "", int32_t max_tokens = 24);
hint::Action action(hint::Verb verb, const std::string& session, const std::string& hint_id = "");
/// The reply of a fresh loop that reuses nothing. Remembered by prompt and length.
std::string fresh_reply(const std::string& prompt, int32_t max_tokens = 24);

}  // namespace kvtide::serving
