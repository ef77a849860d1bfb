// Replies come back as they were: how often a reply, sent back as text, tokenises to other tokens than were generated, with and without the
// prompt memory. A plain program: it plays the first turns of recorded agent sessions with generated replies and prints a table.
//
//   drift_bench FILE.gguf [--data DIR] [--sessions N] [--turns N] [--context TOKENS] [--reply TOKENS] [--temperature T] [--seed N]
//
// Everything but the model's sampling follows from the seed, and that from it too on one machine.
#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "apps/kvtide/replay_workload.h"
#include "engine/llamacpp/llamacpp.h"
#include "serving/loop.h"

namespace {

using namespace kvtide;
using engine::Token;

struct Options {
  std::string model;
  std::string data;
  int sessions = 6;
  int turns = 4;
  int32_t context = 1200;
  int32_t reply = 48;
  float temperature = 0.8F;
  uint32_t seed = 1;
  int threads = 0;
};

template <typename T>
T must(base::Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "drift_bench: %s\n", result.error().message.c_str());
  std::exit(1);
}

/// One way to tokenise prompts, and what it lost.
struct Tally {
  std::vector<Token> prompt;     // of the newest turn
  std::vector<Token> expected;   // prompt and reply of the turn before: what a cache holds
  int64_t turns = 0;             // that brought a reply back
  int64_t drifted_turns = 0;     // whose tokens are not those that were generated
  int64_t expected_tokens = 0;
  int64_t lost_tokens = 0;       // of the expected, behind the first difference
  int64_t reply_tokens = 0;      // of the expected, those of the newest reply

  void take(std::vector<Token> tokens) {
    prompt = std::move(tokens);
    if (expected.empty()) return;
    size_t same = 0;
    while (same < expected.size() && same < prompt.size() && expected[same] == prompt[same]) ++same;
    ++turns;
    expected_tokens += static_cast<int64_t>(expected.size());
    lost_tokens += static_cast<int64_t>(expected.size() - same);
    if (same < expected.size()) ++drifted_turns;
  }
  void replied(const std::vector<Token>& reply) {
    expected = prompt;
    expected.insert(expected.end(), reply.begin(), reply.end());
    reply_tokens += static_cast<int64_t>(reply.size());
  }
  void next_session() {
    prompt.clear();
    expected.clear();
  }
};

struct Reply {
  std::string text;
  std::vector<Token> tokens;
  bool ended = false;  // by the model, not by the limit
};

class ReplySink final : public serving::Sink {
 public:
  void on_event(serving::StreamEvent event) override {
    reply_.text += event.text;
    if (event.sample) reply_.tokens.push_back(event.sample->token);
    if (event.kind == serving::StreamEvent::Kind::kToken) return;
    if (event.kind == serving::StreamEvent::Kind::kError) return done_.set_value(tl::make_unexpected(std::move(event.error)));
    reply_.ended = event.finish == serving::FinishReason::kStop;
    done_.set_value(std::move(reply_));
  }
  base::Result<Reply> wait() { return done_.get_future().get(); }

 private:
  Reply reply_;
  std::promise<base::Result<Reply>> done_;
};

Reply generate(serving::Service& service, const Options& options, uint32_t seed, const std::vector<Token>& prompt, const std::string& text) {
  serving::GenerateRequest request;
  request.prompt = prompt;
  request.prompt_text = text;
  request.sampling.temperature = options.temperature;
  request.sampling.seed = seed;
  request.sampling.top_logprobs = 0;  // shows which tokens were chosen
  request.max_tokens = options.reply;
  auto sink = std::make_shared<ReplySink>();
  must(service.submit(std::move(request), sink));
  return must(sink->wait());
}

struct Counts {
  Tally memory, plain;
  int sessions = 0;
  int replies = 0;
  int replies_ended = 0;
  int rewritten = 0;  // replies that the client was shown otherwise than they were generated (parsed, special tokens dropped)
};

/// Recorded texts are cut so that all turns fit the context; what the model says is generated.
void play(serving::Service& service, const Options& options, const app::ReplaySession& session, uint32_t seed, Counts& counts) {
  const auto texts = static_cast<int32_t>(session.opening.size()) + options.turns - 1;
  const int32_t text_tokens = (options.context - options.turns * options.reply) / texts - 8;
  const auto bytes_max = static_cast<size_t>(std::max(text_tokens, 16)) * 5 / 2;
  engine::ChatInput chat;
  const auto say = [&](const app::Message& m) { chat.messages.push_back({.role = m.role, .content = app::cut_text(m.content, bytes_max)}); };
  for (const app::Message& m : session.opening) say(m);
  counts.memory.next_session();
  counts.plain.next_session();
  ++counts.sessions;
  for (int turn = 0; turn < options.turns && turn < static_cast<int>(session.turns.size()); ++turn) {
    const auto rendered = must(service.text_model().render(chat));
    auto plain = service.text_model().tokenize(rendered.text, true, true);
    if (static_cast<int32_t>(plain.size()) > options.context) return;
    counts.plain.take(std::move(plain));
    counts.memory.take(service.tokenize_prompt("default", rendered.text));
    const Reply reply = generate(service, options, seed + static_cast<uint32_t>(turn), counts.memory.prompt, rendered.text);
    counts.memory.replied(reply.tokens);
    counts.plain.replied(reply.tokens);
    ++counts.replies;
    counts.replies_ended += reply.ended ? 1 : 0;
    // As a client gets it from the server: parsed, or as it is when it does not parse.
    const auto parsed = rendered.parser->parse(reply.text, false);
    const std::string content = parsed ? parsed->content : reply.text;
    std::string raw;
    for (const Token token : reply.tokens) raw += service.text_model().piece(token, true);
    counts.rewritten += raw == content ? 0 : 1;
    chat.messages.push_back({.role = "assistant", .content = content});
    for (const app::Message& m : session.turns[static_cast<size_t>(turn)].following) say(m);
  }
}

double percent(int64_t part, int64_t whole) { return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole); }

void print_row(const char* name, const Tally& t) {
  std::printf("%-22s %6" PRId64 " %8" PRId64 " %6.1f %%   %9" PRId64 " %9" PRId64 " %6.2f %%   %8.1f %%\n", name, t.turns, t.drifted_turns,
              percent(t.drifted_turns, t.turns), t.expected_tokens, t.lost_tokens, percent(t.lost_tokens, t.expected_tokens),
              percent(t.lost_tokens, t.reply_tokens));
}

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app("How often replies come back as other tokens");
  app.add_option("model,--model", o.model, "GGUF file")->required();
  app.add_option("--data", o.data, "folder with the recorded sessions; without it they are generated");
  app.add_option("--sessions", o.sessions)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--turns", o.turns, "of each session")->check(CLI::Range(2, 100))->capture_default_str();
  app.add_option("--context", o.context, "longest prompt, tokens")->check(CLI::Range(256, 1 << 20))->capture_default_str();
  app.add_option("--reply", o.reply, "tokens at most")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--temperature", o.temperature)->capture_default_str();
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--threads", o.threads, "0: one per core")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  // Long sessions are wanted, whatever is played of them; their texts are cut later.
  const app::WorkloadOptions wanted{.users = 1, .sessions = options.sessions, .max_context_tokens = 32768, .seed = options.seed};
  app::Workload workload;
  if (options.data.empty()) {
    workload = app::synthetic_workload(wanted, {});
  } else {
    const auto file = must(app::find_trajectories(options.data, "", {}));
    workload = must(app::load_workload(*file, wanted, {}));
  }

  engine::LlamaCppOptions with;
  with.model_path = options.model;
  with.threads = options.threads;
  with.ctx_size = options.context + options.reply + 8;
  with.parallel = 1;
  auto model = must(engine::load(with));
  const std::string name = model.engine->info().model_name;
  const base::SteadyClock clock;
  const auto loop = must(serving::Loop::start(std::move(model.engine), std::move(model.text), nullptr, {.parallel = 1}, clock));

  Counts counts;
  for (size_t s = 0; s < workload.sessions.size(); ++s) {
    play(*loop, options, workload.sessions[s], options.seed * 100003U + static_cast<uint32_t>(s) * 101U, counts);
  }
  std::printf("workload %s: %s\n", workload.name.c_str(), workload.source.c_str());
  std::printf("model %s, seed %u, temperature %.2f, %d sessions, %d replies of at most %d tokens (%d ended by themselves), context %d\n",
              name.c_str(), options.seed, static_cast<double>(options.temperature), counts.sessions, counts.replies, options.reply,
              counts.replies_ended, options.context);
  std::printf("replies shown to the client otherwise than generated: %d\n\n", counts.rewritten);
  std::printf("%-22s %6s %17s   %9s %18s   %10s\n", "", "turns", "drifted", "known", "lost (would miss)", "of replies");
  print_row("plain tokenisation", counts.plain);
  print_row("prompt memory", counts.memory);
  return 0;
}
