#include "apps/kvtide/serve.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "apps/kvtide/commands.h"
#include "apps/kvtide/model_catalog.h"
#include "apps/kvtide/sizes.h"
#include "apps/kvtide/trace_recorder.h"
#include "base/clock.h"
#include "engine/fake/fake_engine.h"
#include "engine/fake/fake_text_model.h"
#if KVTIDE_HAS_LLAMACPP
#include "engine/llamacpp/llamacpp.h"
#endif
#include "serving/loop.h"
#include "server/server.h"
#include "tier/host/host_tier.h"

namespace kvtide::app {
namespace {

struct Model {
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<engine::TextModel> text;
};

bool is_chatty(const ServeOptions& options) { return options.log_level == "info" || options.log_level == "debug"; }

base::Result<Model> load_fake(const ServeOptions& options) {
  engine::FakeEngineConfig config;
  config.seq_tokens_max = options.ctx_size > 0 ? options.ctx_size : 4096;
  config.layout = options.layout == "lanes" ? engine::Layout::kLanes : engine::Layout::kUnified;
  config.device_tokens = options.device_tokens > 0 ? options.device_tokens : static_cast<int64_t>(config.seq_tokens_max) * options.parallel;
  config.seqs = config.layout == engine::Layout::kLanes ? std::max(1, static_cast<int32_t>(config.device_tokens / config.seq_tokens_max)) : 256;
  config.block_tokens = options.block_tokens;
  return Model{engine::make_fake_engine(config), engine::make_fake_text_model()};
}

#if KVTIDE_HAS_LLAMACPP
base::Result<Model> load_llamacpp(const ServeOptions& options) {
  auto path = resolve_model(options.model);
  if (!path) return tl::make_unexpected(std::move(path.error()));
  engine::LlamaCppOptions o;
  o.model_path = path->string();
  o.n_gpu_layers = options.gpu_layers;
  o.threads = options.threads;
  o.threads_batch = options.threads_batch;
  o.batch_size = options.batch_size;
  o.ubatch_size = options.ubatch_size;
  o.flash_attn = options.flash_attn == "on" ? engine::FlashAttention::kOn : options.flash_attn == "off" ? engine::FlashAttention::kOff : engine::FlashAttention::kAuto;
  o.cache_type_k = options.cache_type_k;
  o.cache_type_v = options.cache_type_v;
  o.ctx_size = options.ctx_size;
  o.parallel = options.parallel;
  o.device_tokens = options.device_tokens;
  o.layout = options.layout == "unified" ? engine::LayoutChoice::kUnified : options.layout == "lanes" ? engine::LayoutChoice::kLanes : engine::LayoutChoice::kAuto;
  o.block_tokens = options.block_tokens;
  o.log = [](engine::LogLevel, std::string_view line) { std::fprintf(stderr, "llama.cpp: %.*s\n", static_cast<int>(line.size()), line.data()); };
  o.log_level = options.log_level == "error" ? engine::LogLevel::kError : options.log_level == "debug" ? engine::LogLevel::kInfo : engine::LogLevel::kWarning;
  if (is_chatty(options)) std::fprintf(stderr, "kvtide: loading %s\n", o.model_path.c_str());
  auto loaded = engine::load(o);
  if (!loaded) return tl::make_unexpected(std::move(loaded.error()));
  return Model{std::move(loaded->engine), std::move(loaded->text)};
}
#endif

base::Result<Model> load_model(const ServeOptions& options) {
  if (options.engine == "fake") return load_fake(options);
#if KVTIDE_HAS_LLAMACPP
  return load_llamacpp(options);
#else
  return base::error(base::Code::kUnsupported, "--engine llamacpp: this build is without llama.cpp (KVTIDE_LLAMA=OFF); only `fake` is there");
#endif
}

server::ServerOptions server_options(const ServeOptions& options) {
  server::ServerOptions o;
  o.host = options.host;
  o.port = options.port;
  for (const ApiKey& key : options.api_keys) o.api_keys[key.tenant].push_back(key.key);
  o.admin_key = options.admin_key;
  o.alias = options.alias;
  o.strict_model = options.strict_model;
  o.allow_forced_replies = options.allow_forced_replies;
  o.body_bytes_max = static_cast<size_t>(options.max_body_bytes);
  o.connections_max = static_cast<size_t>(options.max_connections);
  o.version = KVTIDE_VERSION;
  o.policy_name = options.policy;
  o.hints = options.hints;
  return o;
}

bool is_loopback(const std::string& host) { return host.starts_with("127.") || host == "localhost" || host == "::1"; }

// Written whole under another name, then renamed: who waits for the file never reads half of it.
base::Status write_port_file(const std::string& path, uint16_t port) {
  const std::string part = path + ".part";
  std::ofstream file(part);
  file << port << '\n';
  file.close();
  std::error_code failed;
  if (file) std::filesystem::rename(part, path, failed);
  if (!file || failed) return base::error(base::Code::kUnavailable, "--port-file " + path + ": cannot be written");
  return {};
}

// Before the model loads: a wrong name must not cost that time.
base::Result<std::unique_ptr<TraceRecorder>> open_recorder(const ServeOptions& options) {
  if (options.record_trace.empty()) return nullptr;
  return TraceRecorder::create(options.record_trace, [](const std::string& line) { std::fprintf(stderr, "kvtide: %s\n", line.c_str()); });
}

void print_recorded(const ServeOptions& options, const TraceRecorder::Totals& totals) {
  if (!is_chatty(options) && totals.dropped == 0 && !totals.failed) return;
  std::fprintf(stderr, "kvtide: recorded %lld requests in %s; %lld could not be written in time%s\n", static_cast<long long>(totals.written),
               options.record_trace.c_str(), static_cast<long long>(totals.dropped), totals.failed ? "; a write failed and ended the recording" : "");
}

void print_ready(const ServeOptions& options, const engine::EngineInfo& info, uint16_t port) {
  std::fprintf(stderr, "kvtide: %s (%s), %s layout, %d sequences, %lld cells (%s), host tier %s, policy %s, hints %s\n", info.model_name.c_str(),
               info.model_description.c_str(), info.layout == engine::Layout::kLanes ? "lanes" : "unified", info.seqs,
               static_cast<long long>(info.device_tokens), format_bytes(info.device_tokens * info.token_bytes).c_str(),
               options.host_memory_bytes > 0 ? format_bytes(options.host_memory_bytes).c_str() : "off", options.policy.c_str(), options.hints ? "on" : "off");
  if (!info.reuse) std::fprintf(stderr, "kvtide: KV reuse is off for this model: %s\n", info.reuse_off_reason.c_str());
  std::fprintf(stderr, "kvtide: ready on http://%s:%u/v1\n", options.host.c_str(), port);
}

base::Status serve(const ServeOptions& options) {
  // Signals are taken by sigwait() below; every thread started from here on inherits the mask.
  sigset_t signals;
  sigemptyset(&signals);
  for (int s : {SIGINT, SIGTERM}) sigaddset(&signals, s);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  auto opened = open_recorder(options);
  if (!opened) return tl::make_unexpected(std::move(opened.error()));
  const std::unique_ptr<TraceRecorder> recorder = std::move(*opened);  // the loop tells it to the end
  auto model = load_model(options);
  if (!model) return tl::make_unexpected(std::move(model.error()));
  const engine::EngineInfo info = model->engine->info();
  std::unique_ptr<tier::Tier> host;
  if (options.host_memory_bytes > 0 && info.reuse) {
    auto made = tier::HostTier::make(options.host_memory_bytes, info.block_bytes);
    if (!made) return tl::make_unexpected(std::move(made.error()));
    host = std::move(*made);
  }
  static const base::SteadyClock clock;
  serving::LoopOptions loop_options;
  loop_options.policy = options.policy;
  loop_options.schedule = serving::parse_schedule(options.schedule).value_or(serving::Schedule::kAffinity);
  loop_options.hints = options.hints;
  loop_options.parallel = options.parallel;
  loop_options.queue_max = static_cast<int32_t>(options.max_queue);
  loop_options.sessions_max = static_cast<int32_t>(options.max_sessions);
  loop_options.request_log = recorder.get();
  loop_options.copy_budget_ns = static_cast<base::DurationNs>(options.copy_budget_ms * 1e6);
  auto loop = serving::Loop::start(std::move(model->engine), std::move(model->text), std::move(host), loop_options, clock);
  if (!loop) return tl::make_unexpected(std::move(loop.error()));
  auto http = server::Server::start(**loop, server_options(options));
  if (!http) return tl::make_unexpected(std::move(http.error()));
  if (!options.port_file.empty()) {
    if (auto written = write_port_file(options.port_file, (*http)->port()); !written) return written;
  }
  if (recorder != nullptr) {
    if (auto began = recorder->begin(info.block_tokens, clock.now()); !began) return began;
  }
  if (!is_loopback(options.host) && options.api_keys.empty()) {
    std::fprintf(stderr, "kvtide: warning: --host %s is reachable from other machines and no --api-key is set: anybody may use and administer this server\n",
                 options.host.c_str());
  }
  if (is_chatty(options)) print_ready(options, info, (*http)->port());

  int signal = 0;
  sigwait(&signals, &signal);
  std::fprintf(stderr, "kvtide: stopping (signal %d); running requests have %.0f s\n", signal, options.drain_timeout_s);
  // A second signal does not wait: the default action ends the process.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  const auto drain = std::chrono::milliseconds(static_cast<int64_t>(options.drain_timeout_s * 1000));
  (*http)->stop(drain);
  (*loop)->stop(std::chrono::milliseconds(500));
  if (recorder != nullptr) print_recorded(options, recorder->finish());
  return {};
}

}  // namespace

int run_serve(const ServeOptions& options) {
  const base::Status served = serve(options);
  return served ? kExitDone : fail(served.error());
}

}  // namespace kvtide::app
