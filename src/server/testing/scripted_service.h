// A Service that says what a test tells it to, on a loop thread of its own as the real one does.
//
// Threading: thread-safe. The waits end after ten seconds at the latest and then answer what they have.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/testing/plain_text_model.h"
#include "serving/service.h"

namespace kvtide::server::testing {

class ScriptedService final : public serving::Service {
 public:
  /// What every request is answered with.
  struct Script {
    std::vector<std::string> pieces{"Hel", "lo"};
    serving::FinishReason finish = serving::FinishReason::kStop;
    serving::KvReport kv;
    std::vector<hint::Receipt> receipts;
    std::optional<base::Error> error;   // instead of all
    bool logprobs = false;
    bool hold = false;                  // say nothing: the test calls emit()
  };

  ScriptedService();
  ~ScriptedService() override;

  void set_script(Script script);
  /// submit() and manage() answer this until it is taken away.
  void refuse(std::optional<base::Error> error);

  void emit(base::RequestId id, const serving::StreamEvent& event);
  void emit_text(base::RequestId id, std::string text);
  void emit_done(base::RequestId id);

  /// Events of cancelled requests still come, as they may while a cancel is on its way.
  void keep_sinks_after_cancel();

  std::vector<serving::GenerateRequest> wait_submitted(size_t count);
  size_t wait_cancelled(size_t count);
  size_t cancelled() const;
  std::vector<std::pair<std::string, hint::Hints>> managed() const;  // tenant, hints
  serving::Service::SessionQuery last_query() const;
  std::vector<std::pair<base::RequestId, std::vector<std::string>>> noted() const;  // tool calls

  PlainTextModel text;
  engine::EngineInfo info;
  std::vector<serving::SessionSnapshot> session_list;  // set before the first request
  std::vector<serving::TierSnapshot> tier_list;
  serving::ServiceStats stats_now;

  const engine::EngineInfo& engine_info() const override { return info; }
  const engine::TextModel& text_model() const override { return text; }
  std::vector<serving::Token> tokenize_prompt(const std::string& tenant, const std::string& text) override;
  base::Result<base::RequestId> submit(serving::GenerateRequest request, std::shared_ptr<serving::Sink> sink) override;
  void cancel(base::RequestId id) override;
  void note_tool_calls(base::RequestId id, std::vector<std::string> tools) override;
  base::Status manage(const std::string& tenant, hint::Hints hints, ReceiptsCallback done) override;
  base::Status find_receipt(const std::string& tenant, std::string hint_id,
                            std::function<void(std::optional<hint::Receipt>)> done) override;
  base::Status sessions(SessionQuery query, std::function<void(std::vector<serving::SessionSnapshot>, size_t)> done) override;
  base::Status tiers(std::function<void(std::vector<serving::TierSnapshot>)> done) override;
  base::Status stats(std::function<void(serving::ServiceStats)> done) override;
  void stop(std::chrono::milliseconds deadline) override;

 private:
  void on_loop(std::function<void()> work);
  void run();
  void play(const Script& script, const std::shared_ptr<serving::Sink>& sink);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> inbox_;
  bool stopping_ = false;
  Script script_;
  std::optional<base::Error> refusal_;
  std::vector<serving::GenerateRequest> submitted_;
  std::map<base::RequestId, std::shared_ptr<serving::Sink>> sinks_;
  size_t cancelled_ = 0;
  bool keep_sinks_ = false;
  std::vector<std::pair<std::string, hint::Hints>> managed_;
  SessionQuery last_query_;
  std::vector<std::pair<base::RequestId, std::vector<std::string>>> noted_;
  std::thread loop_;
};

}  // namespace kvtide::server::testing
