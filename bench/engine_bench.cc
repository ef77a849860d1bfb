// What the engine seam costs over llama.cpp itself, and what each KV layout costs. A plain program: it prints ratios and a table.
//
//   engine_bench MODEL.gguf            speed: prefill, decode, block export and import, each beside the raw calls, interleaved
//   engine_bench MODEL.gguf blocks            the second half of speed alone
//   engine_bench MODEL.gguf layout     cost of a decode and a prefill with 0, 4, 8 resident contexts, by layout and flash attention
//   engine_bench MODEL.gguf [MODE] THREADS
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/llamacpp/llamacpp.h"
#include "llama.h"

namespace {

using namespace kvtide;
using engine::Engine;
using engine::SeqId;
using engine::StepItem;
using engine::Token;

constexpr int kSeqs = 8;
constexpr int kCtx = 2048;

double ms_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void must(const base::Status& status) {
  if (status) return;
  std::fprintf(stderr, "engine_bench: %s\n", status.error().message.c_str());
  std::exit(1);
}

std::vector<Token> text(int n) {
  std::vector<Token> tokens(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) tokens[static_cast<size_t>(i)] = 200 + i * 37 % 1000;
  return tokens;
}

engine::LoadedModel load(const std::string& model, int threads, engine::LayoutChoice layout, engine::FlashAttention flash, int seqs) {
  engine::LlamaCppOptions options;
  options.model_path = model;
  options.n_gpu_layers = 0;
  options.threads = threads;
  options.layout = layout;
  options.flash_attn = flash;
  options.ctx_size = kCtx + 512;
  options.parallel = seqs;
  auto loaded = engine::load(options);
  if (!loaded) must(tl::make_unexpected(loaded.error()));
  return std::move(*loaded);
}

/// The same work through llama.h, with a context of the same shape.
class Raw {
 public:
  Raw(const std::string& model, int threads, bool unified) {
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    model_ = llama_model_load_from_file(model.c_str(), mp);
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (kCtx + 512) * kSeqs;
    cp.n_seq_max = unified ? 256 : kSeqs;
    cp.n_outputs_max = cp.n_seq_max;
    cp.n_threads = cp.n_threads_batch = threads;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.kv_unified = unified;
    context_ = llama_init_from_model(model_, cp);
    batch_ = llama_batch_init(4096, 0, 1);
  }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  ~Raw() {
    llama_batch_free(batch_);
    llama_free(context_);
    llama_model_free(model_);
  }

  /// `each` tokens for each of `seqs` sequences, logits of the last of each.
  void step(int seqs, int pos, const std::vector<Token>& each) {
    batch_.n_tokens = 0;
    for (int s = 0; s < seqs; ++s) {
      for (size_t i = 0; i < each.size(); ++i) {
        const int n = batch_.n_tokens++;
        batch_.token[n] = each[i];
        batch_.pos[n] = pos + static_cast<int>(i);
        batch_.n_seq_id[n] = 1;
        batch_.seq_id[n][0] = s;
        batch_.logits[n] = i + 1 == each.size();
      }
    }
    if (llama_decode(context_, batch_) != 0) std::exit(1);
    for (int s = 0; s < seqs; ++s) read_ += llama_get_logits_ith(context_, (s + 1) * static_cast<int>(each.size()) - 1)[0];
  }
  void clear() { llama_memory_clear(llama_get_memory(context_), false); }
  void get(std::vector<uint8_t>& blob) { blob_bytes_ = llama_state_seq_get_data(context_, blob.data(), blob.size(), 0); }
  void set(const std::vector<uint8_t>& blob) {
    if (llama_state_seq_set_data(context_, blob.data(), blob_bytes_, 1) != blob_bytes_) std::exit(1);
  }
  void drop(int seq) { llama_memory_seq_rm(llama_get_memory(context_), seq, -1, -1); }

 private:
  llama_model* model_;
  llama_context* context_;
  llama_batch batch_{};
  size_t blob_bytes_ = 0;
  float read_ = 0;
};

void step(Engine& e, int seqs, int pos, const std::vector<Token>& each, float& read) {
  std::vector<StepItem> items;
  for (int s = 0; s < seqs; ++s) {
    items.push_back({.seq = SeqId(static_cast<uint32_t>(s)), .pos = pos, .tokens = each, .want_logits = true});
  }
  must(e.step(items));
  for (size_t s = 0; s < items.size(); ++s) read += e.logits(s)[0];
}

void clear(Engine& e) {
  for (int s = 0; s < kSeqs; ++s) e.truncate(SeqId(static_cast<uint32_t>(s)), 0);
}

void print(const char* what, double ours_ms, double raw_ms) {
  std::printf("%-34s engine %9.3f ms   llama.cpp %9.3f ms   ratio %.3f\n", what, ours_ms, raw_ms, ours_ms / raw_ms);
}

void compute(Engine& e, Raw& raw) {
  float read = 0;
  for (const int seqs : {1, kSeqs}) {
    const auto prompt = text(256 / seqs);
    std::vector<double> ours_prefill, raw_prefill, ours_decode, raw_decode;
    for (int round = 0; round < 9; ++round) {
      clear(e);
      raw.clear();
      ours_prefill.push_back(ms_of([&] { step(e, seqs, 0, prompt, read); }));
      raw_prefill.push_back(ms_of([&] { raw.step(seqs, 0, prompt); }));
      for (int i = 0; i < 8; ++i) {
        const int pos = static_cast<int>(prompt.size()) + i;
        ours_decode.push_back(ms_of([&] { step(e, seqs, pos, {300}, read); }));
        raw_decode.push_back(ms_of([&] { raw.step(seqs, pos, {300}); }));
      }
    }
    const std::string suffix = ", batch " + std::to_string(seqs);
    print(("prefill of 256 tokens" + suffix).c_str(), median(ours_prefill), median(raw_prefill));
    print(("decode of one token each" + suffix).c_str(), median(ours_decode), median(raw_decode));
  }
  clear(e);
}

void blocks(Engine& e, Raw& raw) {
  float read = 0;
  for (const int count : {1, 16}) {
    const int tokens = count * e.info().block_tokens;
    clear(e);
    raw.clear();
    step(e, 1, 0, text(tokens), read);
    raw.step(1, 0, text(tokens));
    const auto block_bytes = static_cast<size_t>(e.info().block_bytes);
    std::vector<std::vector<std::byte>> store(static_cast<size_t>(count), std::vector<std::byte>(block_bytes));
    const std::vector<std::span<std::byte>> out(store.begin(), store.end());
    const std::vector<std::span<const std::byte>> in(store.begin(), store.end());
    std::vector<uint8_t> blob(static_cast<size_t>(count) * block_bytes * 2 + (1 << 20));
    std::vector<double> ours_out, raw_out, ours_in, raw_in;
    for (int round = 0; round < 16 / count + 6; ++round) {
      ours_out.push_back(ms_of([&] { must(e.export_blocks(SeqId{0}, 0, out)); }));
      raw_out.push_back(ms_of([&] { raw.get(blob); }));
      ours_in.push_back(ms_of([&] { must(e.import_blocks(SeqId{1}, 0, in)); }));
      raw_in.push_back(ms_of([&] { raw.set(blob); }));
      e.truncate(SeqId{1}, 0);
      raw.drop(1);
    }
    const std::string what = " of " + std::to_string(count) + " block(s)";
    print(("export" + what).c_str(), median(ours_out), median(raw_out));
    print(("import" + what).c_str(), median(ours_in), median(raw_in));
    std::printf("%-34s export %.0f MB/s, import %.0f MB/s\n", "", static_cast<double>(count * e.info().block_bytes) / median(ours_out) / 1e3,
                static_cast<double>(count * e.info().block_bytes) / median(ours_in) / 1e3);
  }
  clear(e);
}

void speed(const std::string& model, int threads, bool with_compute) {
  for (const bool unified : {false, true}) {
    std::printf("%s, flash attention off, %d thread(s)\n", unified ? "unified" : "lanes", threads);
    auto loaded = load(model, threads, unified ? engine::LayoutChoice::kUnified : engine::LayoutChoice::kLanes,
                       engine::FlashAttention::kOff, kSeqs);
    Raw raw(model, threads, unified);
    if (with_compute) compute(*loaded.engine, raw);
    blocks(*loaded.engine, raw);
  }
}

/// One context of kCtx tokens is computed and copied, so that filling eight of them costs little.
void fill(Engine& e, int residents) {
  float read = 0;
  const auto prompt = text(256);
  for (int pos = 0; pos < kCtx; pos += 256) {
    const StepItem item{.seq = SeqId{1}, .pos = pos, .tokens = prompt, .want_logits = true};
    must(e.step({&item, 1}));
    read += e.logits(0)[0];
  }
  const size_t count = kCtx / static_cast<size_t>(e.info().block_tokens);
  std::vector<std::vector<std::byte>> store(count, std::vector<std::byte>(static_cast<size_t>(e.info().block_bytes)));
  must(e.export_blocks(SeqId{1}, 0, std::vector<std::span<std::byte>>(store.begin(), store.end())));
  for (int s = 2; s <= residents; ++s) {
    must(e.import_blocks(SeqId(static_cast<uint32_t>(s)), 0, std::vector<std::span<const std::byte>>(store.begin(), store.end())));
  }
}

void layout(const std::string& model, int threads) {
  std::printf("one fresh sequence beside resident contexts of %d tokens, %d thread(s)\n", kCtx, threads);
  std::printf("%-10s %-6s %10s %16s %20s\n", "layout", "flash", "residents", "decode ms/token", "prefill 256 ms");
  float read = 0;
  for (const auto choice : {engine::LayoutChoice::kUnified, engine::LayoutChoice::kLanes}) {
    for (const auto flash : {engine::FlashAttention::kOff, engine::FlashAttention::kOn}) {
      auto loaded = load(model, threads, choice, flash, 9);
      Engine& e = *loaded.engine;
      for (const int residents : {0, 4, 8}) {
        if (residents > 0) fill(e, residents);
        std::vector<double> decode, prefill;
        for (int round = 0; round < 3; ++round) {
          e.truncate(SeqId{0}, 0);
          prefill.push_back(ms_of([&] { step(e, 1, 0, text(256), read); }));
          for (int i = 0; i < 10; ++i) decode.push_back(ms_of([&] { step(e, 1, 256 + i, {300}, read); }));
        }
        std::printf("%-10s %-6s %10d %16.2f %20.1f\n", choice == engine::LayoutChoice::kLanes ? "lanes" : "unified",
                    flash == engine::FlashAttention::kOn ? "on" : "off", residents, median(decode), median(prefill));
        std::fflush(stdout);
        for (int s = 0; s <= residents; ++s) e.truncate(SeqId(static_cast<uint32_t>(s)), 0);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: engine_bench MODEL.gguf [speed|blocks|layout] [THREADS]\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string mode = argc > 2 ? argv[2] : "speed";
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  if (mode == "layout") {
    layout(argv[1], threads);
  } else {
    speed(argv[1], threads, mode != "blocks");
  }
  return 0;
}
