// The life of a request: what is refused, how a reply ends, what stop and cancel leave behind.
#include "serving/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "serving/testing/harness.h"
#include "serving/testing/two_ways_text_model.h"

namespace kvtide::serving {
namespace {

using testing::HasSubstr;

base::Error refused(Harness& h, GenerateRequest request) {
  const auto id = h.loop().submit(std::move(request), std::make_shared<Collector>());
  EXPECT_FALSE(id.has_value());
  return id ? base::Error{base::Code::kInternal, "taken"} : id.error();
}

TEST(Loop, AnUnknownPolicyDoesNotStart) {
  VirtualClock clock;
  LoopOptions options;
  options.policy = "fortune";
  const auto loop = Loop::start(engine::make_fake_engine(), engine::make_fake_text_model(), nullptr, options, clock);
  ASSERT_FALSE(loop.has_value());
  EXPECT_EQ(loop.error().code, base::Code::kInvalidArgument);
}

TEST(Loop, AnswersAndReportsWhatTheCacheDid) {
  Harness h;
  const std::string prompt(100, 'p');
  const auto first = h.ask(greedy(prompt, "s"));
  EXPECT_EQ(first->text(), fresh_reply(prompt));
  EXPECT_EQ(first->last().kv.prompt_tokens, 100);
  EXPECT_EQ(first->last().kv.recomputed_tokens, 100);
  EXPECT_EQ(first->last().kv.session_id, "s");
  const auto second = h.ask(greedy(prompt, "s"));
  EXPECT_EQ(second->text(), first->text());
  const KvReport kv = second->last().kv;
  EXPECT_GE(kv.device_tokens, 96);
  EXPECT_EQ(kv.device_tokens + kv.host_tokens + kv.recomputed_tokens, kv.prompt_tokens);
  h.expect_quiet();
}

TEST(Loop, APromptWithoutTokensIsRefused) {
  Harness h;
  EXPECT_EQ(refused(h, greedy("")).code, base::Code::kInvalidArgument);
}

TEST(Loop, APromptThatIsTooLongIsRefusedByTheNameOfTheFlag) {
  Harness h;
  const base::Error error = refused(h, greedy(std::string(512, 'x')));
  EXPECT_EQ(error.code, base::Code::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("--ctx-size"));
  EXPECT_EQ(h.ask(greedy(std::string(511, 'x')))->last().tokens, 1);  // the longest that is taken: one token fits behind it
  h.expect_quiet();
}

TEST(Loop, APromptThatTheDeviceCanNeverHoldIsRefusedAndTheLongestOneIsServed) {
  Scene scene;
  scene.engine.device_tokens = 128;  // fewer cells than one sequence may be long
  Harness h(std::move(scene));
  const base::Error error = refused(h, greedy(std::string(128, 'x')));
  EXPECT_EQ(error.code, base::Code::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("--ctx-size"));
  EXPECT_TRUE(h.ask(greedy(std::string(127, 'x')))->ended());
  EXPECT_TRUE(h.ask(greedy(std::string(120, 'y'), "", 100))->ended());
  h.expect_quiet();
}

TEST(Loop, ATokenOutsideTheVocabularyIsRefused) {
  Harness h;
  for (const Token bad : {-1, 260, 1 << 30}) {
    GenerateRequest request = greedy("hello");
    request.prompt[2] = bad;
    EXPECT_EQ(refused(h, request).code, base::Code::kInvalidArgument);
    GenerateRequest forced = greedy("hello");
    forced.forced_reply = {'o', bad};
    EXPECT_EQ(refused(h, forced).code, base::Code::kInvalidArgument);
  }
}

TEST(Loop, ASamplerThatTheEngineRefusesIsAnErrorOfThatRequestOnly) {
  Harness h;
  GenerateRequest request = greedy("hello");
  request.sampling.logit_bias = {{100'000, 1.0F}};
  const auto reply = h.ask(request);
  EXPECT_TRUE(reply->failed());
  EXPECT_EQ(reply->last().error.code, base::Code::kInvalidArgument);
  EXPECT_FALSE(h.ask(greedy("hello"))->failed());
  h.expect_quiet();
}

TEST(Loop, AFullLineRefusesAndRecovers) {
  Scene scene;
  scene.options.queue_max = 3;
  scene.options.parallel = 1;
  Harness h(std::move(scene));
  h.gate().allow(0);
  const auto running = h.submit(greedy("first"));
  ASSERT_TRUE(h.gate().wait_held());  // admitted: it waits no more
  std::vector<Harness::Submitted> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(h.submit(greedy("next " + std::to_string(i))));
  EXPECT_EQ(refused(h, greedy("one too many")).code, base::Code::kResourceExhausted);
  h.gate().open();
  for (const auto& one : waiting) EXPECT_TRUE(one.reply->wait_end());
  EXPECT_FALSE(h.ask(greedy("room again"))->failed());
  h.expect_quiet();
}

TEST(Loop, RequestsShareSteps) {
  Harness h;
  h.gate().allow(0);
  std::vector<Harness::Submitted> all;
  for (int i = 0; i < 4; ++i) all.push_back(h.submit(greedy("request " + std::to_string(i))));
  h.gate().open();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(all[i].reply->wait_end());
    EXPECT_EQ(all[i].reply->text(), fresh_reply("request " + std::to_string(i)));
  }
  h.on_loop([&] { EXPECT_GE(h.engine().step_items_max(), 3); });
}

TEST(Loop, AReplyEndsAtMaxTokens) {
  Harness h;
  GenerateRequest request = greedy("count", "", 7);
  request.sampling.ignore_eos = true;
  const auto reply = h.ask(request);
  EXPECT_EQ(reply->last().tokens, 7);
  EXPECT_EQ(reply->text().size(), 7U);
  EXPECT_EQ(reply->last().finish, FinishReason::kLength);
}

TEST(Loop, AReplyWithoutLimitEndsWhenTheContextIsFull) {
  Harness h;
  GenerateRequest request = greedy(std::string(300, 'c'), "", -1);
  request.sampling.ignore_eos = true;
  const auto reply = h.ask(request);
  EXPECT_EQ(reply->last().finish, FinishReason::kLength);
  EXPECT_EQ(reply->last().tokens, 512 - 300);
  h.expect_quiet();
}

TEST(Loop, IgnoreEosGoesOnWhereTheReplyWouldHaveEnded) {
  Scene scene;
  scene.engine.end_one_in = 4;
  Harness h(std::move(scene));
  const auto ended = h.ask(greedy("soon over", "", 200));
  EXPECT_EQ(ended->last().finish, FinishReason::kStop);
  ASSERT_LT(ended->last().tokens, 200);
  GenerateRequest request = greedy("soon over", "", 200);
  request.sampling.ignore_eos = true;
  const auto longer = h.ask(request);
  EXPECT_EQ(longer->last().tokens, 200);
  EXPECT_TRUE(longer->text().starts_with(ended->text()));
}

TEST(Loop, AStopStringEndsTheReplyAndIsNotPartOfIt) {
  Harness h;
  const std::string whole = fresh_reply("stop me", 40);
  ASSERT_GT(whole.size(), 12U);
  const std::string stop = whole.substr(6, 3);
  GenerateRequest request = greedy("stop me", "", 40);
  request.stops = {stop};
  const auto reply = h.ask(request);
  EXPECT_EQ(reply->last().finish, FinishReason::kStop);
  EXPECT_EQ(reply->text(), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(reply->last().tokens, static_cast<int32_t>(whole.find(stop) + stop.size()));
}

TEST(Loop, AForcedReplyIsEmittedAsItIs) {
  Harness h;
  GenerateRequest request = greedy("say it");
  request.forced_reply = bytes_of("forced words");
  const auto reply = h.ask(request);
  EXPECT_EQ(reply->text(), "forced words");
  EXPECT_EQ(reply->last().finish, FinishReason::kStop);
  // What follows a forced reply is computed on those very tokens.
  EXPECT_EQ(h.ask(greedy("say itforced words and"))->text(), fresh_reply("say itforced words and"));
}

TEST(Loop, LogprobsComeOnlyWhenAskedFor) {
  Harness h;
  EXPECT_TRUE(h.ask(greedy("probable", "", 5))->samples().empty());
  GenerateRequest request = greedy("probable", "", 5);
  request.sampling.ignore_eos = true;
  request.sampling.top_logprobs = 3;
  const auto samples = h.ask(request)->samples();
  ASSERT_EQ(samples.size(), 5U);
  for (const engine::Sample& sample : samples) {
    ASSERT_EQ(sample.top.size(), 3U);
    EXPECT_EQ(sample.top[0].token, sample.token);  // greedy
    EXPECT_FLOAT_EQ(sample.top[0].logprob, sample.logprob);
    EXPECT_LE(sample.logprob, 0.0F);
    EXPECT_GE(sample.top[0].logprob, sample.top[1].logprob);
  }
}

TEST(Loop, ASeedRepeatsARandomReply) {
  Harness h;
  GenerateRequest request = greedy("dice");
  request.sampling.temperature = 1.5F;
  request.sampling.seed = 7;
  EXPECT_EQ(h.ask(request)->text(), h.ask(request)->text());
}

TEST(Loop, CancelMidwayFreesTheSequenceAndKeepsTheRestServed) {
  Harness h;
  GenerateRequest request = greedy("endless", "s", 400);
  request.sampling.ignore_eos = true;
  h.gate().allow(5);
  const auto one = h.submit(request);
  ASSERT_TRUE(h.gate().wait_held());
  h.loop().cancel(one.id);
  h.gate().open();
  h.settle();
  EXPECT_FALSE(one.reply->ended());
  const ServiceStats stats = h.stats();
  EXPECT_EQ(stats.requests_cancelled, 1);
  EXPECT_EQ(stats.seqs_used, 0);
  EXPECT_EQ(h.ask(greedy("endless"))->text(), fresh_reply("endless"));
  h.expect_quiet();
}

TEST(Loop, CancelReachesARequestThatWaits) {
  Scene scene;
  scene.options.parallel = 1;
  scene.options.queue_max = 1;
  Harness h(std::move(scene));
  h.gate().allow(0);
  const auto running = h.submit(greedy("first"));
  ASSERT_TRUE(h.gate().wait_held());
  const auto waiting = h.submit(greedy("second"));
  h.loop().cancel(waiting.id);
  h.loop().cancel(RequestId(999'999));
  h.gate().open();
  EXPECT_TRUE(running.reply->wait_end());
  h.settle();
  EXPECT_FALSE(waiting.reply->ended());
  EXPECT_EQ(h.stats().requests_cancelled, 1);
  EXPECT_FALSE(h.ask(greedy("third"))->failed());  // its place in the line is free again
  h.expect_quiet();
}

TEST(Loop, ACancelRightBehindItsSubmitIsNeverLost) {
  Scene scene;
  scene.options.queue_max = 2000;
  Harness h(std::move(scene));
  constexpr int kRounds = 500;
  for (int i = 0; i < kRounds; ++i) {
    GenerateRequest request = greedy("c" + std::to_string(i % 7), "", 500);
    request.sampling.ignore_eos = true;
    h.loop().cancel(h.submit(request).id);
  }
  h.settle();
  EXPECT_EQ(h.stats().requests_cancelled, kRounds);
  h.expect_quiet();
}

// Calls stop() on a thread of its own; comes back when the loop knows of it.
std::thread stop_behind(Harness& h, std::chrono::milliseconds deadline) {
  std::thread stopper([&h, deadline] { h.loop().stop(deadline); });
  while (true) {
    const base::Status asked = h.loop().stats([](ServiceStats) {});
    if (!asked && asked.error().code == base::Code::kUnavailable) return stopper;
    std::this_thread::yield();
  }
}

TEST(Loop, StopLetsRunningRepliesEnd) {
  const std::string last_words = fresh_reply("last words", 100);
  const std::string queued = fresh_reply("queued before the stop");
  for (int round = 0; round < 20; ++round) {
    Harness h;
    h.gate().allow(3);
    const auto one = h.submit(greedy("last words", "", 100));
    ASSERT_TRUE(h.gate().wait_held());
    const auto waiting = h.submit(greedy("queued before the stop"));
    std::thread stopper = stop_behind(h, std::chrono::minutes(10));
    for (int i = 0; i < 20 * round; ++i) std::this_thread::yield();
    h.gate().open();
    stopper.join();
    ASSERT_EQ(one.reply->text(), last_words);
    ASSERT_EQ(one.reply->ends(), 1U);
    ASSERT_EQ(waiting.reply->text(), queued);
  }
}

TEST(Loop, StopEndsWhatIsLeftAtTheDeadline) {
  Scene scene;
  scene.engine.seq_tokens_max = 4096;
  Harness h(std::move(scene));
  GenerateRequest request = greedy("endless", "", 4000);
  request.sampling.ignore_eos = true;
  h.gate().allow(3);
  const auto one = h.submit(request);
  ASSERT_TRUE(h.gate().wait_held());
  std::thread stopper = stop_behind(h, std::chrono::milliseconds(10));  // a hundred tokens of virtual time
  h.gate().open();
  stopper.join();
  EXPECT_EQ(one.reply->ends(), 1U);
  EXPECT_TRUE(one.reply->failed());
  EXPECT_GT(one.reply->text().size(), 40U);    // it went on until the deadline
  EXPECT_LT(one.reply->text().size(), 4000U);  // and not longer
}

TEST(Loop, AfterStopEverythingIsUnavailable) {
  Harness h;
  EXPECT_FALSE(h.ask(greedy("hello"))->failed());
  h.loop().stop(std::chrono::seconds(1));
  EXPECT_EQ(refused(h, greedy("late")).code, base::Code::kUnavailable);
  EXPECT_EQ(h.loop().stats([](ServiceStats) {}).error().code, base::Code::kUnavailable);
  EXPECT_EQ(h.loop().manage("default", {}, [](std::vector<hint::Receipt>) {}).error().code, base::Code::kUnavailable);
  h.loop().cancel(RequestId(1));
  h.loop().stop(std::chrono::seconds(1));
}

TEST(Loop, AReplyComesBackAsTheTokensThatWereGenerated) {
  Scene scene;
  scene.engine.vocab_tokens = 320;
  scene.text_model = std::make_unique<TwoWaysTextModel>();
  Harness h(std::move(scene));
  const std::string text = "a question of some length, so that there are blocks:";
  std::string said;
  GenerateRequest request = greedy(text, "s", 100);
  request.prompt = h.loop().tokenize_prompt("default", text);
  request.prompt_text = text;
  for (int i = 0; i < 20; ++i) {
    request.forced_reply.insert(request.forced_reply.end(), {'a', 'b'});
    said += "ab";
  }
  EXPECT_EQ(h.ask(request)->text(), said);
  const std::vector<Token> next = h.loop().tokenize_prompt("default", text + said + "<end>and?");
  std::vector<Token> exact = request.prompt;
  exact.insert(exact.end(), request.forced_reply.begin(), request.forced_reply.end());
  for (const Token token : {kTwoWaysEnd, Token{'a'}, Token{'n'}, Token{'d'}, Token{'?'}}) exact.push_back(token);
  EXPECT_EQ(next, exact);
  GenerateRequest follow = greedy("", "s", 5);
  follow.prompt = next;
  const KvReport kv = h.ask(follow)->last().kv;
  EXPECT_GE(kv.device_tokens, static_cast<int32_t>(request.prompt.size() + request.forced_reply.size()) - 1);
  // Another tenant's same text is tokenised plainly.
  EXPECT_EQ(h.loop().tokenize_prompt("other", text + said + "<end>and?"), h.loop().text_model().tokenize(text + said + "<end>and?", true, true));
}

TEST(Loop, SaltsAndTenantsShareNothing) {
  Harness h;
  const std::string prompt(120, 'q');
  h.ask(greedy(prompt, "s"));
  GenerateRequest salted = greedy(prompt, "s");
  salted.cache_salt = "pepper";
  const auto one = h.ask(salted);
  EXPECT_EQ(one->last().kv.recomputed_tokens, 120);
  GenerateRequest foreign = greedy(prompt, "s");
  foreign.tenant = "other";
  const auto two = h.ask(foreign);
  EXPECT_EQ(two->last().kv.recomputed_tokens, 120);
  EXPECT_EQ(one->text(), fresh_reply(prompt));
  EXPECT_EQ(two->text(), fresh_reply(prompt));
}

TEST(Loop, AnEngineWithoutReuseServesPlainly) {
  Scene scene;
  scene.engine.reuse = false;
  scene.engine.seqs = 2;
  scene.host_blocks = 0;
  Harness h(std::move(scene));
  for (int i = 0; i < 4; ++i) {
    const auto reply = h.ask(greedy("same prompt every time", "s"));
    EXPECT_EQ(reply->text(), fresh_reply("same prompt every time"));
    EXPECT_EQ(reply->last().kv.device_tokens, 0);
  }
  h.expect_quiet();
}

}  // namespace
}  // namespace kvtide::serving
