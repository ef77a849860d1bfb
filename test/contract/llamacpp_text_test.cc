// llama.cpp's side of the text seam, and what load() says when it cannot load.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "engine/llamacpp/llamacpp.h"
#include "model_for_tests.h"

namespace kvtide::engine {
namespace {

LlamaCppOptions options() {
  LlamaCppOptions out;
  out.model_path = model_for_tests();
  out.n_gpu_layers = 0;
  out.ctx_size = 1024;
  out.parallel = 1;
  out.threads = 1;
  return out;
}

class LlamaCppText : public testing::Test {
 protected:
  void SetUp() override {
    if (model_for_tests().empty()) GTEST_SKIP() << kNoModel;
    if (!model_) {
      auto loaded = load(options());
      ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
      model_ = std::make_unique<LoadedModel>(std::move(*loaded));
    }
  }
  static void TearDownTestSuite() { model_.reset(); }

  const TextModel& text() { return *model_->text; }
  Engine& engine() { return *model_->engine; }

  static ChatMessage say(std::string role, std::string content) {
    ChatMessage message;
    message.role = std::move(role);
    message.content = std::move(content);
    return message;
  }
  static ChatTool weather() {
    return {.name = "get_weather",
            .description = "Weather of a city.",
            .parameters = R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})"};
  }
  static ChatInput ask(std::string content) {
    ChatInput input;
    input.messages.push_back(say("user", std::move(content)));
    return input;
  }

  std::string reply(const RenderedChat& chat, size_t most) {
    SamplingParams params;
    params.temperature = 0;
    params.grammar = chat.grammar;
    auto sampler = engine().make_sampler(params);
    EXPECT_TRUE(sampler.has_value());
    auto tokens = text().tokenize(chat.text, true, true);
    std::string out;
    int32_t pos = 0;
    for (size_t i = 0; i < most; ++i) {
      const StepItem item{.seq = SeqId{0}, .pos = pos, .tokens = tokens, .want_logits = true};
      EXPECT_TRUE(engine().step({&item, 1}).has_value());
      pos += static_cast<int32_t>(tokens.size());
      tokens = {(*sampler)->sample(0).token};
      if (text().is_end(tokens[0])) break;
      out += text().piece(tokens[0], true);
    }
    engine().truncate(SeqId{0}, 0);
    return out;
  }

  static std::unique_ptr<LoadedModel> model_;
};
std::unique_ptr<LoadedModel> LlamaCppText::model_;

TEST_F(LlamaCppText, TokensAndTextGoBothWays) {
  const std::string said = "Grüße, <|im_end|> {\"a\": [1, 2]}\n\n  x";
  const auto tokens = text().tokenize(said, false, true);
  std::string back;
  for (const Token token : tokens) back += text().piece(token, true);
  EXPECT_EQ(back, said);
  EXPECT_EQ(text().piece(-1, true), "");
  EXPECT_EQ(text().piece(1 << 30, true), "");
  ASSERT_FALSE(text().end_texts().empty());
  for (const auto& end : text().end_texts()) {
    const auto ids = text().tokenize(end, false, true);
    ASSERT_EQ(ids.size(), 1U);
    EXPECT_TRUE(text().is_end(ids[0]));
  }
}

TEST_F(LlamaCppText, TemplateOfTheModelIsUsed) {
  const auto chat = text().render(ask("Hello there"));
  ASSERT_TRUE(chat.has_value()) << chat.error().message;
  EXPECT_NE(chat->text.find("Hello there"), std::string::npos);
  EXPECT_EQ(chat->grammar, nullptr);
  const auto parsed = chat->parser->parse("Hi.", false);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->content, "Hi.");
}

TEST_F(LlamaCppText, SchemaHoldsTheReply) {
  auto input = ask("Give me a person.");
  input.json_schema = R"({"type":"object","properties":{"age":{"type":"integer"},"ok":{"type":"boolean"}},"required":["age","ok"]})";
  const auto chat = text().render(input);
  ASSERT_TRUE(chat.has_value()) << chat.error().message;
  ASSERT_NE(chat->grammar, nullptr);
  const std::string said = reply(*chat, 60);
  const auto parsed = chat->parser->parse(said, false);  // takes a fence away, which llama.cpp's grammar allows
  ASSERT_TRUE(parsed.has_value()) << said;
  EXPECT_TRUE(parsed->content.starts_with("{") && parsed->content.ends_with("}")) << said;
  EXPECT_NE(parsed->content.find("\"age\""), std::string::npos) << said;
  input.json_schema = "{}";
  ASSERT_TRUE(text().render(input).has_value());
  EXPECT_NE(text().render(input)->grammar, nullptr);
}

TEST_F(LlamaCppText, RequiredToolIsCalledWithAStableId) {
  auto input = ask("What is the weather in Paris?");
  input.tools = {weather()};
  input.tool_choice = ToolChoice::kRequired;
  const auto chat = text().render(input);
  ASSERT_TRUE(chat.has_value()) << chat.error().message;
  ASSERT_NE(chat->grammar, nullptr);
  const std::string said = reply(*chat, 120);
  const auto parsed = chat->parser->parse(said, false);
  ASSERT_TRUE(parsed.has_value()) << said << parsed.error().message;
  ASSERT_GE(parsed->tool_calls.size(), 1U) << said;
  EXPECT_EQ(parsed->tool_calls[0].name, "get_weather");
  EXPECT_FALSE(parsed->tool_calls[0].id.empty());
  EXPECT_EQ(chat->parser->parse(said, true)->tool_calls[0].id, parsed->tool_calls[0].id);
  // What was said can be said again in the next prompt.
  input.messages.push_back(say("assistant", ""));
  input.messages.back().tool_calls = parsed->tool_calls;
  input.messages.push_back(say("tool", "sunny"));
  input.messages.back().tool_call_id = parsed->tool_calls[0].id;
  input.tool_choice = ToolChoice::kAuto;
  const auto next = text().render(input);
  ASSERT_TRUE(next.has_value()) << next.error().message;
  EXPECT_NE(next->text.find("sunny"), std::string::npos);
}

TEST_F(LlamaCppText, PartialRepliesGrow) {
  auto input = ask("What is the weather in Paris?");
  input.tools = {weather()};
  const auto chat = text().render(input);
  ASSERT_TRUE(chat.has_value());
  const std::string said = "Let me look at that for you.";
  ParsedReply before;
  for (size_t n = 0; n <= said.size(); ++n) {
    const auto now = chat->parser->parse(said.substr(0, n), true);
    ASSERT_TRUE(now.has_value());
    EXPECT_TRUE(now->content.starts_with(before.content)) << n;
    before = *now;
  }
  EXPECT_EQ(before.content, said);
}

TEST_F(LlamaCppText, GrammarHoldsTheReplyAndAForcedTokenEndsItsSay) {
  auto input = ask("Yes or no?");
  input.grammar = R"(root ::= "maybe" | "never")";
  const auto chat = text().render(input);
  ASSERT_TRUE(chat.has_value()) << chat.error().message;
  const std::string said = reply(*chat, 20);
  EXPECT_TRUE(said == "maybe" || said == "never") << said;

  SamplingParams params;
  params.temperature = 0;
  params.grammar = chat->grammar;
  auto sampler = engine().make_sampler(params);
  const auto tokens = text().tokenize("zzz", false, true);
  for (const Token token : tokens) (*sampler)->accept(token, true);  // must not end the process
  const StepItem item{.seq = SeqId{0}, .pos = 0, .tokens = tokens, .want_logits = true};
  ASSERT_TRUE(engine().step({&item, 1}).has_value());
  (void)(*sampler)->sample(0);
  engine().truncate(SeqId{0}, 0);
}

TEST_F(LlamaCppText, WhatCannotCompileIsTheRequestsError) {
  const auto refused = [&](auto change) {
    auto input = ask("x");
    change(input);
    const auto chat = text().render(input);
    return !chat.has_value() && chat.error().code == base::Code::kInvalidArgument && chat.error().message.find('\n') == std::string::npos;
  };
  EXPECT_TRUE(refused([](ChatInput& in) { in.grammar = "root ::= ("; }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.grammar = "root ::= missing"; }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.grammar = "%llguidance {}"; }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.grammar = "root ::= " + std::string(100000, '('); }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.json_schema = "{nonsense"; }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.json_schema = std::string(100000, '['); }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.tool_choice = ToolChoice::kRequired; }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.template_kwargs["x"] = "{oops"; }));
  EXPECT_TRUE(refused([](ChatInput& in) { in.template_kwargs["enable_thinking"] = "\"yes\""; }));
}

TEST_F(LlamaCppText, BadSamplingIsNamed) {
  SamplingParams params;
  params.repeat_penalty = 0;
  const auto refused = engine().make_sampler(params);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("repeat_penalty"), std::string::npos);
}

TEST_F(LlamaCppText, IgnoringTheEndGoesOn) {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  auto sampler = engine().make_sampler(params);
  auto tokens = text().tokenize("<|im_start|>assistant\nOk.<|im_end|>", true, true);
  int32_t pos = 0;
  for (int i = 0; i < 10; ++i) {
    const StepItem item{.seq = SeqId{0}, .pos = pos, .tokens = tokens, .want_logits = true};
    ASSERT_TRUE(engine().step({&item, 1}).has_value());
    pos += static_cast<int32_t>(tokens.size());
    tokens = {(*sampler)->sample(0).token};
    EXPECT_FALSE(text().is_end(tokens[0]));
  }
  engine().truncate(SeqId{0}, 0);
}

class LlamaCppLoad : public testing::Test {
 protected:
  void SetUp() override {
    if (model_for_tests().empty()) GTEST_SKIP() << kNoModel;
  }
  static base::Error refusal(const LlamaCppOptions& with) {
    auto loaded = load(with);
    EXPECT_FALSE(loaded.has_value());
    if (loaded) return {base::Code::kInternal, "was loaded"};
    EXPECT_EQ(loaded.error().message.find('\n'), std::string::npos);
    return loaded.error();
  }
  /// The first `bytes` of the model, or `text` when given, as a file.
  static std::string file(const char* name, size_t bytes, const std::string& text = {}) {
    const std::string path = testing::TempDir() + name;
    std::ofstream out(path, std::ios::binary);
    if (!text.empty()) {
      out << text;
    } else {
      std::ifstream in(model_for_tests(), std::ios::binary);
      std::string part(bytes, '\0');
      in.read(part.data(), static_cast<std::streamsize>(bytes));
      out << part;
    }
    return path;
  }
};

TEST_F(LlamaCppLoad, MissingDamagedAndForeignFilesAreNamed) {
  auto with = options();
  with.model_path = "/nowhere/model.gguf";
  EXPECT_EQ(refusal(with).code, base::Code::kNotFound);
  with.model_path = file("kvtide_foreign.gguf", 0, "PK\x03\x04 this is not a model");
  EXPECT_NE(refusal(with).message.find("not a GGUF"), std::string::npos);
  with.model_path = file("kvtide_cut_in_header.gguf", 5000);
  EXPECT_EQ(refusal(with).code, base::Code::kInvalidArgument);
  std::remove(with.model_path.c_str());
  with.model_path = file("kvtide_cut_in_data.gguf", 8 << 20);
  EXPECT_EQ(refusal(with).code, base::Code::kInvalidArgument);
  std::remove(with.model_path.c_str());
}

TEST_F(LlamaCppLoad, WhatDoesNotFitIsRefusedBeforeMemoryRunsOut) {
  auto with = options();
  with.ctx_size = 500'000'000;
  EXPECT_EQ(refusal(with).code, base::Code::kResourceExhausted);
  with = options();
  with.device_tokens = 100;
  EXPECT_NE(refusal(with).message.find("device-tokens"), std::string::npos);
  with = options();
  with.cache_type_k = "q9_9";
  EXPECT_NE(refusal(with).message.find("cache-type-k"), std::string::npos);
  with = options();
  with.cache_type_v = "q8_0";
  with.flash_attn = FlashAttention::kOff;
  EXPECT_NE(refusal(with).message.find("flash-attn"), std::string::npos);
}

TEST_F(LlamaCppLoad, FingerprintTellsCachesApartThatCannotBeExchanged) {
  const auto of = [](auto change) {
    auto with = options();
    change(with);
    auto loaded = load(with);
    EXPECT_TRUE(loaded.has_value());
    return loaded ? loaded->engine->info().fingerprint : base::Digest{};
  };
  const auto plain = of([](LlamaCppOptions&) {});
  EXPECT_EQ(of([](LlamaCppOptions& o) { o.ctx_size = 512; }), plain);
  EXPECT_EQ(of([](LlamaCppOptions& o) { o.layout = LayoutChoice::kUnified; }), plain);
  EXPECT_NE(of([](LlamaCppOptions& o) { o.flash_attn = FlashAttention::kOn; }), plain);
  EXPECT_NE(of([](LlamaCppOptions& o) { o.cache_type_k = "q8_0"; }), plain);
}

TEST_F(LlamaCppLoad, TextOutlivesTheEngine) {
  auto loaded = load(options());
  ASSERT_TRUE(loaded.has_value());
  loaded->engine.reset();
  EXPECT_FALSE(loaded->text->tokenize("still here", true, true).empty());
}

}  // namespace
}  // namespace kvtide::engine
