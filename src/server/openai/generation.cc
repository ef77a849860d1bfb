#include "server/openai/generation.h"

#include <ctime>
#include <mutex>
#include <utility>
#include <vector>

#include "hint/receipt_json.h"
#include "server/http/error_map.h"
#include "server/openai/prepare.h"
#include "server/openai/reply_format.h"
#include "server/openai/reply_json.h"

namespace kvtide::server {
namespace {

using serving::StreamEvent;

constexpr size_t kInlineBodyBytes = 64U << 10U;  // smaller bodies are decoded where they were read
constexpr size_t kEventsQueuedMax = 16384;       // over all choices, between two turns of the strand; more: the request fails

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(serving::Service& service, const GenerationOptions& options, ReplyKind kind, std::string tenant, Request request,
             std::shared_ptr<Exchange> exchange)
      : service_(service), options_(options), kind_(kind), tenant_(std::move(tenant)), request_(std::move(request)),
        exchange_(std::move(exchange)) {}

  void start() {
    exchange_->on_gone([self = shared_from_this()](Gone gone) { self->gone(gone); });
    if (request_.body.size() <= kInlineBodyBytes) return decoded(decode());
    exchange_->compute([self = shared_from_this()] {
      auto result = std::make_shared<base::Result<Decoded>>(self->decode());
      self->exchange_->post([self, result] { self->decoded(std::move(*result)); });
    });
  }

  /// From a sink, on the loop thread.
  void take_event(size_t choice, StreamEvent event) {
    {
      std::lock_guard lock(events_mutex_);
      if (events_.size() >= kEventsQueuedMax) return void(events_lost_ = true);
      events_.emplace_back(choice, std::move(event));
      if (std::exchange(events_posted_, true)) return;
    }
    exchange_->post([self = shared_from_this()] { self->on_events(); });
  }

 private:
  // A sink forgets its generation at the end of the stream, so that a service that keeps sinks keeps nothing else.
  class ChoiceSink final : public serving::Sink {
   public:
    ChoiceSink(std::shared_ptr<Generation> generation, size_t choice) : generation_(std::move(generation)), choice_(choice) {}
    void on_event(StreamEvent event) override {
      if (!generation_) return;
      const bool last = event.kind != StreamEvent::Kind::kToken;
      generation_->take_event(choice_, std::move(event));
      if (last) generation_.reset();
    }

   private:
    std::shared_ptr<Generation> generation_;
    const size_t choice_;
  };

  base::Result<Decoded> decode() {
    auto result = decode_request(request_.body, request_.headers, kind_, options_, service_.engine_info());
    request_.body = std::string();  // the copy in the request struct is enough
    return result;
  }

  void decoded(base::Result<Decoded> result) {
    if (over_) return;
    if (!result) return fail(result.error());
    envelope_.model = options_.model_name;
    envelope_.created_s = static_cast<int64_t>(std::time(nullptr));
    problems_ = result->hints.problems;
    if (result->manage) return manage(std::move(result->hints));
    envelope_.id = make_id(kind_ == ReplyKind::kChat ? "chatcmpl-" : "cmpl-");
    auto body = std::make_shared<Decoded>(std::move(*result));
    exchange_->compute([self = shared_from_this(), body] {
      auto ready = std::make_shared<base::Result<Prepared>>(prepare(std::move(*body), self->tenant_, self->service_));
      self->exchange_->post([self, ready] { self->submit(std::move(*ready)); });
    });
  }

  void manage(hint::Hints hints) {
    envelope_.id = make_id("kv-");
    const auto done = [self = shared_from_this()](std::vector<hint::Receipt> receipts) {
      self->exchange_->post([self, receipts = std::move(receipts)] { self->managed(receipts); });
    };
    const auto queued = service_.manage(tenant_, std::move(hints), done);
    if (!queued) fail(queued.error());
  }

  void managed(const std::vector<hint::Receipt>& receipts) {
    if (std::exchange(over_, true)) return;
    const std::string_view object = kind_ == ReplyKind::kChat ? "chat.completion" : "text_completion";
    Response response;
    response.body = to_text(management_json(envelope_, object, Json(hint::hint_result_json(receipts, problems_))));
    exchange_->send(std::move(response));
  }

  void submit(base::Result<Prepared> result) {
    if (over_) return;
    if (!result) return fail(result.error());
    Prepared& ready = *result;
    stream_ = ready.stream;
    include_usage_ = ready.include_usage;
    prompt_tokens_ = static_cast<int32_t>(ready.request.prompt.size());
    const auto count = static_cast<size_t>(ready.choices);
    const engine::TextModel& text_model = service_.text_model();
    format_ = kind_ == ReplyKind::kChat ? make_chat_format(std::move(ready.parser), text_model, count, ready.logprobs)
                                        : make_completion_format(text_model, count, ready.logprobs);
    choices_.resize(count);
    const auto seed = ready.request.sampling.seed;
    for (size_t i = 0; i < count; ++i) {
      serving::GenerateRequest one = i + 1 < count ? ready.request : std::move(ready.request);
      if (seed) one.sampling.seed = *seed + static_cast<uint32_t>(i);  // else all choices would be the same
      if (i > 0) one.hints.actions.clear();                            // what was asked is asked once
      auto id = service_.submit(std::move(one), std::make_shared<ChoiceSink>(shared_from_this(), i));
      if (!id) return fail(id.error());
      ids_.push_back(*id);
    }
  }

  void on_events() {
    std::vector<std::pair<size_t, StreamEvent>> events;
    bool lost = false;
    {
      std::lock_guard lock(events_mutex_);
      events.swap(events_);
      events_posted_ = false;
      lost = events_lost_;
    }
    if (over_) return;
    if (lost) return fail({base::Code::kInternal, "the reply came faster than it could be sent"});
    std::vector<bool> touched(choices_.size());
    for (auto& [index, event] : events) {
      if (event.kind == StreamEvent::Kind::kError) return fail(event.error);
      apply(choices_[index], std::move(event));
      touched[index] = true;
    }
    if (stream_) {
      for (size_t i = 0; i < choices_.size() && !over_; ++i) {
        if (touched[i]) say(i);
      }
    }
    if (!over_ && done_ == choices_.size()) finish();
  }

  void apply(Choice& choice, StreamEvent event) {
    choice.tokens = std::max(choice.tokens, event.tokens);
    choice.text += event.text;
    if (event.sample) choice.samples.push_back(std::move(*event.sample));
    if (event.kind != StreamEvent::Kind::kDone || choice.done) return;
    choice.done = true;
    choice.finish = event.finish;
    choice.kv = std::move(event.kv);
    choice.receipts = std::move(event.receipts);
    ++done_;
  }

  /// Streams what is new of a choice. Its last chunk carries usage, kv and receipts beside a choice: some clients drop chunks without.
  void say(size_t index) {
    const Choice& choice = choices_[index];
    std::vector<Json> entries;
    if (!opened_) {
      exchange_->begin_stream("text/event-stream");
      opened_ = true;
      for (size_t i = 0; i < choices_.size(); ++i) {
        for (Json& entry : format_->opening(i)) entries.push_back(std::move(entry));
      }
    }
    for (Json& entry : format_->advance(index, choice)) entries.push_back(std::move(entry));
    if (choice.done) note_tool_calls(index);
    std::string text;
    for (size_t i = 0; i < entries.size(); ++i) {
      Json chunk = envelope_json(envelope_, format_->chunk_object());
      chunk["choices"] = Json::array({std::move(entries[i])});
      if (choice.done && i + 1 == entries.size()) add_report(chunk, choice);
      text += sse(chunk);
    }
    if (!text.empty() && !exchange_->write(std::move(text))) {
      fail({base::Code::kResourceExhausted, "the client reads too slowly"});
    }
  }

  void add_report(Json& out, const Choice& choice) {
    out["usage"] = usage_json(choices_, prompt_tokens_);
    out["kv"] = kv_json(choice.kv);
    if (!choice.receipts.empty() || !problems_.empty()) out["kv_hint_result"] = Json(hint::hint_result_json(choice.receipts, problems_));
  }

  /// Only the parser knows the calls, and it runs here: the session learns of them late, but before the tools can be done.
  void note_tool_calls(size_t index) {
    auto tools = format_->called_tools(index);
    if (!tools.empty() && choices_[index].finish == serving::FinishReason::kStop) service_.note_tool_calls(ids_[index], std::move(tools));
  }

  void finish() {
    over_ = true;
    if (stream_) {
      std::string last;
      if (include_usage_) {
        Json chunk = envelope_json(envelope_, format_->chunk_object());
        chunk["choices"] = Json::array();
        chunk["usage"] = usage_json(choices_, prompt_tokens_);
        last = sse(chunk);
      }
      exchange_->end_stream(last + "data: [DONE]\n\n", false);
      return;
    }
    Json body = envelope_json(envelope_, format_->whole_object());
    body["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      body["choices"].push_back(format_->whole(i, choices_[i]));
      note_tool_calls(i);
    }
    add_report(body, choices_[0]);
    Response response;
    response.body = to_text(body);
    exchange_->send(std::move(response));
  }

  void fail(const base::Error& error) {
    if (std::exchange(over_, true)) return;
    cancel_all();
    const bool no_model = error.code == base::Code::kNotFound;
    const Response response = no_model ? status_response(404, error.message, "model_not_found") : error_response(error);
    if (opened_) exchange_->end_stream("data: " + response.body + "\n\n", true);
    else exchange_->send(response);
  }

  void gone(Gone why) {
    if (why == Gone::kDeadline) return fail({base::Code::kDeadlineExceeded, "the answer took too long"});
    if (std::exchange(over_, true)) return;
    cancel_all();
  }

  void cancel_all() {
    for (const auto id : ids_) service_.cancel(id);
  }

  serving::Service& service_;
  const GenerationOptions& options_;
  const ReplyKind kind_;
  const std::string tenant_;
  Request request_;
  const std::shared_ptr<Exchange> exchange_;

  Envelope envelope_;
  std::vector<hint::Problem> problems_;
  std::unique_ptr<ReplyFormat> format_;
  std::vector<Choice> choices_;
  std::vector<base::RequestId> ids_;
  int32_t prompt_tokens_ = 0;
  size_t done_ = 0;
  bool stream_ = false;
  bool include_usage_ = false;
  bool opened_ = false;
  bool over_ = false;  // answered, failed or abandoned

  std::mutex events_mutex_;  // guards the three below
  std::vector<std::pair<size_t, StreamEvent>> events_;
  bool events_posted_ = false;
  bool events_lost_ = false;
};

}  // namespace

void start_generation(serving::Service& service, const GenerationOptions& options, ReplyKind kind, std::string tenant, Request request,
                      std::shared_ptr<Exchange> exchange) {
  std::make_shared<Generation>(service, options, kind, std::move(tenant), std::move(request), std::move(exchange))->start();
}

}  // namespace kvtide::server
