// A client of the loop for tests: multi-turn chat sessions that put every reply back into the conversation, played one call at a time.
//
// One call at a time, because the numbers that a model computes depend on what else is in a batch: two runs are only comparable to the
// last bit when both compute the same tokens in the same batches.
//
// Threading: thread-compatible; TestClock is thread-safe.
// Errors: test failures, reported where they happen.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "serving/loop.h"

namespace kvtide::serving {

/// Time moves between calls only. So no cost is ever measured, and whether a block is loaded does not depend on the machine's speed.
class TestClock final : public base::Clock {
 public:
  base::TimeNs now() const override { return now_ns_; }
  void advance(base::DurationNs by_ns) { now_ns_ += by_ns; }

 private:
  std::atomic<base::TimeNs> now_ns_{0};
};

struct Reply {
  std::vector<Token> prompt;
  std::vector<engine::Sample> samples;
  std::string text;
  KvReport kv;
};
using Played = std::vector<std::vector<Reply>>;  // by session, then turn

/// Collects one reply. The loop thread writes, the waiting thread reads after the promise is kept.
class ReplySink final : public Sink {
 public:
  void on_event(StreamEvent event) override {
    reply_.text += event.text;
    if (event.sample) reply_.samples.push_back(std::move(*event.sample));
    if (event.kind == StreamEvent::Kind::kToken) return;
    reply_.kv = event.kv;
    if (event.kind == StreamEvent::Kind::kDone) return done_.set_value(std::move(reply_));
    done_.set_value(tl::make_unexpected(std::move(event.error)));
  }
  base::Result<Reply> wait() { return done_.get_future().get(); }

 private:
  Reply reply_;
  std::promise<base::Result<Reply>> done_;
};

struct Script {
  std::string system;
  std::vector<std::string> words;      // user messages are cut from these, in order, over and over
  std::vector<int32_t> prompt_tokens;  // per turn: about how long its prompt is
};

class SessionClient {
 public:
  static constexpr int32_t kReplyTokens = 24;

  SessionClient(Service& service, std::string name, const Script& script) : service_(service), name_(std::move(name)), script_(script) {
    chat_.messages.push_back({.role = "system", .content = script.system});
  }

  /// Prompt of the next turn: the user says as many words as it takes to reach the script's length, and then as many more until the part
  /// that is computed when the reply ends (its last token never is) fills whole blocks. A restored prefix, which is whole blocks, is then
  /// exactly as long as one that never left, so both runs compute the same tokens.
  std::vector<Token> next_prompt() {
    chat_.messages.push_back({.role = "user", .content = ""});
    const size_t turn = turns_++;
    const int32_t block = service_.engine_info().block_tokens;
    std::string& said = chat_.messages.back().content;
    int32_t words = 1;
    while (true) {
      for (; words > 0; --words) said += (said.empty() ? "" : " ") + script_.words[word_++ % script_.words.size()];
      const auto rendered = service_.text_model().render(chat_);
      if (!rendered) {
        ADD_FAILURE() << rendered.error().message;
        return {};
      }
      prompt_text_ = rendered->text;
      auto tokens = service_.tokenize_prompt(name_, prompt_text_);
      const auto n = static_cast<int32_t>(tokens.size());
      const int32_t least = std::max(n, script_.prompt_tokens[turn]) + kReplyTokens - 1;
      const int32_t goal = (least + block - 1) / block * block - (kReplyTokens - 1);
      if (n == goal) return tokens;
      if (goal > service_.engine_info().seq_tokens_max) {
        ADD_FAILURE() << "no prompt of a fitting length";
        return {};
      }
      words = std::max(1, (goal - n) / 2);  // most words are more than one token
    }
  }

  /// Greedy, of exactly kReplyTokens tokens. `salt` keeps a call from reusing anything of others.
  Reply ask(std::vector<Token> prompt, const std::string& salt) {
    GenerateRequest request;
    request.tenant = name_;
    request.cache_salt = salt;
    request.prompt = prompt;
    request.prompt_text = prompt_text_;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.top_logprobs = 5;
    request.max_tokens = kReplyTokens;
    request.special_text = true;
    request.hints.identity.session_id = name_;
    auto sink = std::make_shared<ReplySink>();
    const auto id = service_.submit(std::move(request), sink);
    if (!id) {
      ADD_FAILURE() << id.error().message;
      return {};
    }
    auto reply = sink->wait();
    if (!reply) {
      ADD_FAILURE() << reply.error().message;
      return {};
    }
    EXPECT_EQ(reply->samples.size(), static_cast<size_t>(kReplyTokens));
    reply->prompt = std::move(prompt);
    chat_.messages.push_back({.role = "assistant", .content = reply->text});
    return std::move(*reply);
  }

 private:
  Service& service_;
  const std::string name_;
  const Script& script_;
  engine::ChatInput chat_;
  std::string prompt_text_;
  size_t turns_ = 0;
  size_t word_ = 0;
};

/// Where two replies to the same prompt part.
struct Difference {
  size_t session = 0, turn = 0, position = 0;
  double margin = 0;  // by how much the first run preferred its token to the other run's; infinite when that was not among its best
};

struct Comparison {
  size_t replies = 0;
  std::vector<Difference> differences;
  double noise = 0;  // largest difference of the logprobs of tokens that both runs chose, up to the first difference
};

inline Comparison compare(const Played& expected, const Played& actual) {
  Comparison out;
  for (size_t s = 0; s < expected.size(); ++s) {
    for (size_t t = 0; t < expected[s].size(); ++t) {
      const auto& want = expected[s][t].samples;
      const auto& got = actual[s][t].samples;
      ++out.replies;
      EXPECT_EQ(expected[s][t].prompt, actual[s][t].prompt) << "session " << s << " turn " << t;
      EXPECT_EQ(want.size(), got.size());
      for (size_t i = 0; i < std::min(want.size(), got.size()); ++i) {
        if (want[i].token == got[i].token) {
          out.noise = std::max(out.noise, std::fabs(static_cast<double>(want[i].logprob - got[i].logprob)));
          continue;
        }
        Difference d{.session = s, .turn = t, .position = i, .margin = INFINITY};
        for (const engine::TokenLogprob& other : want[i].top) {
          if (other.token == got[i].token) d.margin = static_cast<double>(want[i].logprob - other.logprob);
        }
        out.differences.push_back(d);
        break;
      }
    }
  }
  return out;
}

}  // namespace kvtide::serving
