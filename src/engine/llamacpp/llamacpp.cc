#include "engine/llamacpp/llamacpp.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "common.h"
#include "engine/llamacpp/llamacpp_engine.h"
#include "engine/llamacpp/llamacpp_fingerprint.h"
#include "engine/llamacpp/llamacpp_log.h"
#include "engine/llamacpp/llamacpp_model.h"
#include "engine/llamacpp/llamacpp_text_model.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;
using base::Status;

constexpr int64_t kContextStep = 256;  // llama.cpp rounds contexts up to this

Result<ggml_type> cache_type(const char* flag, const std::string& name) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                               GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1}) {
    if (name == ggml_type_name(type)) return type;
  }
  return error(Code::kInvalidArgument,
               std::string(flag) + ": unknown type '" + name + "'; one of f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1");
}

Status check_file(const std::string& path) {
  std::error_code ec;
  if (path.empty()) return error(Code::kInvalidArgument, "no model file given");
  if (!std::filesystem::is_regular_file(path, ec)) return error(Code::kNotFound, "there is no model file '" + path + "'");
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> magic{};
  if (!file) return error(Code::kUnavailable, "cannot open the model file '" + path + "'");
  if (!file.read(magic.data(), magic.size()) || std::memcmp(magic.data(), "GGUF", 4) != 0) {
    return error(Code::kInvalidArgument, "'" + path + "' is not a GGUF model file");
  }
  return {};
}

Result<std::shared_ptr<const LlamaModel>> load_model(const LlamaCppOptions& options) {
  if (auto ok = check_file(options.model_path); !ok) return tl::make_unexpected(ok.error());
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = options.n_gpu_layers;
  const LogCapture capture(false);
  llama_model* model = llama_model_load_from_file(options.model_path.c_str(), params);
  if (model == nullptr) {
    return error(Code::kInvalidArgument, "the model file '" + options.model_path +
                                             "' could not be loaded, it may be damaged or of an unknown kind: " +
                                             capture.last_error("llama.cpp gave no reason"));
  }
  auto owned = std::make_shared<const LlamaModel>(model, options.model_path);
  if (llama_vocab_type(owned->vocab()) == LLAMA_VOCAB_TYPE_NONE || !llama_model_has_decoder(model)) {
    return error(Code::kInvalidArgument, "'" + options.model_path + "' does not generate text");
  }
  return owned;
}

/// Bytes of memory that Linux can give without swapping; 0 when unknown.
int64_t memory_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    file.ignore(64, '\n');
  }
  return 0;
}

/// KV bytes of one cell by the model's metadata. Right for plain attention; an estimate for the memory check only.
int64_t estimated_cell_bytes(const LlamaModel& model, ggml_type type_k, ggml_type type_v) {
  const std::string arch = model.meta("general.architecture");
  const int64_t heads_kv = llama_model_n_head_kv(model.model);
  const int64_t heads = std::max(1, llama_model_n_head(model.model));
  int64_t head = std::atoll(model.meta(arch + ".attention.key_length").c_str());
  if (head == 0) head = llama_model_n_embd(model.model) / heads;
  const int64_t width = head * heads_kv;
  if (width % ggml_blck_size(type_k) != 0 || width % ggml_blck_size(type_v) != 0) return 0;
  return llama_model_n_layer(model.model) * static_cast<int64_t>(ggml_row_size(type_k, width) + ggml_row_size(type_v, width));
}

struct ContextPlan {
  llama_context_params params{};
  Layout layout = Layout::kUnified;
  int32_t seqs = 0;            // for the caller
  int32_t seq_tokens_max = 0;  // before llama.cpp rounds
};

Result<ContextPlan> plan_context(const LlamaModel& model, const LlamaCppOptions& options) {
  const auto type_k = cache_type("cache-type-k", options.cache_type_k);
  if (!type_k) return tl::make_unexpected(type_k.error());
  const auto type_v = cache_type("cache-type-v", options.cache_type_v);
  if (!type_v) return tl::make_unexpected(type_v.error());
  if (options.block_tokens <= 0) return error(Code::kInvalidArgument, "block-tokens must be greater than 0");
  if (options.batch_size <= 0 || options.ubatch_size <= 0) {
    return error(Code::kInvalidArgument, "batch-size and ubatch-size must be greater than 0");
  }
  if (options.parallel <= 0) return error(Code::kInvalidArgument, "parallel must be greater than 0");
  const int64_t ctx = options.ctx_size > 0 ? options.ctx_size : llama_model_n_ctx_train(model.model);
  const int64_t cells = options.device_tokens > 0 ? options.device_tokens : ctx * options.parallel;
  if (cells < ctx) {
    return error(Code::kInvalidArgument, "device-tokens (" + std::to_string(cells) + ") must hold at least one ctx-size (" +
                                             std::to_string(ctx) + ")");
  }
  if (cells > INT32_MAX / 2) return error(Code::kInvalidArgument, "device-tokens (" + std::to_string(cells) + ") is too large");

  ContextPlan plan;
  const ContextChoice choice = choose_context(options);
  plan.layout = choice.layout;
  plan.seq_tokens_max = static_cast<int32_t>(ctx);
  const auto seq_limit = static_cast<int64_t>(llama_max_parallel_sequences());
  const bool reusable = reuse_obstacle(model).empty();
  llama_context_params& params = plan.params;
  params = llama_context_default_params();
  if (plan.layout == Layout::kLanes) {
    plan.seqs = static_cast<int32_t>(std::min(cells / ctx, seq_limit));
    params.n_ctx = static_cast<uint32_t>((ctx + kContextStep - 1) / kContextStep * kContextStep * plan.seqs);
    params.n_seq_max = static_cast<uint32_t>(plan.seqs);
  } else {
    // Sequences that hold blocks cost nothing but a row of logits, so there are as many as llama.cpp has. Not so with state per sequence.
    plan.seqs = static_cast<int32_t>(reusable ? seq_limit - 1 : std::min<int64_t>(options.parallel, seq_limit - 1));
    params.n_ctx = static_cast<uint32_t>(cells);
    params.n_seq_max = static_cast<uint32_t>(plan.seqs) + 1;
  }
  params.n_batch = static_cast<uint32_t>(options.batch_size);
  params.n_ubatch = static_cast<uint32_t>(std::min(options.ubatch_size, options.batch_size));
  params.n_outputs_max = params.n_seq_max;  // one row per item of a step
  const int32_t threads = options.threads > 0 ? options.threads : common_cpu_get_num_math();
  params.n_threads = threads;
  params.n_threads_batch = options.threads_batch > 0 ? options.threads_batch : threads;
  params.flash_attn_type = choice.flash_attn;
  params.type_k = *type_k;
  params.type_v = *type_v;
  params.kv_unified = plan.layout == Layout::kUnified;
  params.no_perf = true;
  return plan;
}

Result<ContextPtr> make_context(const LlamaModel& model, const ContextPlan& plan, const LlamaCppOptions& options) {
  const bool on_cpu = options.n_gpu_layers == 0 || !llama_supports_gpu_offload();
  const int64_t need = estimated_cell_bytes(model, plan.params.type_k, plan.params.type_v) * plan.params.n_ctx;
  const int64_t have = memory_available();
  const std::string cells = std::to_string(plan.params.n_ctx) + " KV cells";
  if (on_cpu && have > 0 && need > have) {
    return error(Code::kResourceExhausted, cells + " need " + std::to_string(need >> 20) + " MiB of memory and " +
                                               std::to_string(have >> 20) + " MiB are free: lower ctx-size, parallel or device-tokens");
  }
  const LogCapture capture(false);
  ContextPtr context(llama_init_from_model(model.model, plan.params));
  if (!context) {
    return error(Code::kResourceExhausted, cells + " could not be set up (" + capture.last_error("llama.cpp gave no reason") +
                                               "): lower ctx-size, parallel or device-tokens, or see cache-type-k/-v and flash-attn");
  }
  return context;
}

EngineInfo describe(const LlamaModel& model, llama_context* context, const ContextPlan& plan, const LlamaCppOptions& options) {
  std::array<char, 256> text{};
  llama_model_desc(model.model, text.data(), text.size());
  EngineInfo info;
  info.engine = "llamacpp";
  info.engine_version = llama_version();
  info.model_name = model.meta("general.name");
  if (info.model_name.empty()) info.model_name = std::filesystem::path(model.path).stem().string();
  info.model_description = text.data();
  info.layout = plan.layout;
  info.seqs = plan.seqs;
  info.block_tokens = options.block_tokens;
  info.device_tokens = llama_n_ctx(context);
  const auto seq_cells = static_cast<int32_t>(llama_n_ctx_seq(context));
  info.seq_tokens_max = plan.layout == Layout::kLanes ? seq_cells : std::min(plan.seq_tokens_max, seq_cells);
  info.context_train_tokens = llama_model_n_ctx_train(model.model);
  info.batch_tokens_max = static_cast<int32_t>(llama_n_batch(context));
  info.vocab_tokens = llama_vocab_n_tokens(model.vocab());
  return info;
}

void start_backends() {
  static std::once_flag once;
  std::call_once(once, [] {
    ggml_backend_load_all();
    llama_backend_init();
  });
}

}  // namespace

std::string LlamaModel::meta(const std::string& key) const {
  const int32_t size = llama_model_meta_val_str(model, key.c_str(), nullptr, 0);
  if (size < 0) return {};
  std::string value(static_cast<size_t>(size) + 1, '\0');
  llama_model_meta_val_str(model, key.c_str(), value.data(), value.size());
  value.resize(static_cast<size_t>(size));
  return value;
}

ContextChoice choose_context(const LlamaCppOptions& options) {
  const bool gpu = options.n_gpu_layers != 0 && llama_supports_gpu_offload();
  // In a unified pool each decode pays for all that is resident, which weighs most on CPUs. `engine_bench MODEL layout` measures it.
  ContextChoice choice{.layout = gpu ? Layout::kUnified : Layout::kLanes,
                       .flash_attn = gpu ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED};
  if (options.layout == LayoutChoice::kUnified) choice.layout = Layout::kUnified;
  if (options.layout == LayoutChoice::kLanes) choice.layout = Layout::kLanes;
  const bool quantised_values = options.cache_type_v != "f16" && options.cache_type_v != "f32" && options.cache_type_v != "bf16";
  if (quantised_values) choice.flash_attn = LLAMA_FLASH_ATTN_TYPE_ENABLED;  // llama.cpp cannot transpose them
  if (options.flash_attn == FlashAttention::kOn) choice.flash_attn = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  if (options.flash_attn == FlashAttention::kOff) choice.flash_attn = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  return choice;
}

Result<std::unique_ptr<Engine>> LlamaCppEngine::create(std::shared_ptr<const LlamaModel> model, const LlamaCppOptions& options) {
  const auto plan = plan_context(*model, options);
  if (!plan) return tl::make_unexpected(plan.error());
  auto context = make_context(*model, *plan, options);
  if (!context) return tl::make_unexpected(context.error());
  EngineInfo info = describe(*model, context->get(), *plan, options);

  const int32_t other = plan->layout == Layout::kUnified ? plan->seqs : plan->seqs - 1;  // the scratch; the last lane
  auto check = check_kv(*model, context->get(), plan->layout, other);
  if (!check) return tl::make_unexpected(check.error());
  info.reuse = check->geometry.has_value();
  info.reuse_off_reason = check->why_not;
  const auto digest = fingerprint(*model, check->geometry ? &*check->geometry : nullptr);
  if (!digest) return tl::make_unexpected(digest.error());
  info.fingerprint = *digest;
  std::optional<KvCodec> codec;
  if (check->geometry) {
    codec.emplace(std::move(*check->geometry), options.block_tokens);
    info.block_bytes = static_cast<int64_t>(codec->block_bytes());
    info.token_bytes = static_cast<int64_t>(codec->geometry().cell_bytes());
  }
  return std::unique_ptr<Engine>(new LlamaCppEngine(std::move(model), std::move(*context), std::move(info), std::move(codec)));
}

Result<LoadedModel> load(const LlamaCppOptions& options) {
  route_log(options.log, options.log_level);
  start_backends();
  try {
    auto model = load_model(options);
    if (!model) return tl::make_unexpected(model.error());
    auto engine = LlamaCppEngine::create(*model, options);
    if (!engine) return tl::make_unexpected(engine.error());
    auto text = make_llamacpp_text_model(*model);
    if (!text) return tl::make_unexpected(text.error());
    return LoadedModel{.engine = std::move(*engine), .text = std::move(*text)};
  } catch (const std::exception& failure) {
    return error(Code::kInternal, std::string("loading the model failed: ") + failure.what());
  }
}

}  // namespace kvtide::engine
