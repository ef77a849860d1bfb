#include "apps/kvtide/serve_options.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "apps/kvtide/sizes.h"

namespace kvtide::app {
namespace {

using base::Code;
using base::error;

constexpr size_t kTenantBytesMax = 64;

/// Turns sizes like 4G into digits before CLI11 reads the number.
CLI::Validator as_bytes() {
  return CLI::Validator(
      [](std::string& text) {
        const auto bytes = parse_bytes(text);
        if (!bytes) return bytes.error().message;
        text = std::to_string(*bytes);
        return std::string();
      },
      "BYTES");
}

CLI::Validator one_of(std::vector<std::string> names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : "|") + name;
  return CLI::Validator(
      [names = std::move(names), list](std::string& text) {
        return std::find(names.begin(), names.end(), text) != names.end() ? std::string() : "'" + text + "' is none of " + list;
      },
      list);
}

CLI::Validator at_least(double least) {
  return CLI::Validator(
      [least](std::string& text) {
        std::istringstream in(text);
        double value = 0;
        if (!(in >> value)) return "'" + text + "' is no number";
        if (value >= least) return std::string();
        std::ostringstream out;
        out << text << " is too small; give at least " << least;
        return out.str();
      },
      "");
}

/// A TOML value as CLI11 takes it from a command line.
std::optional<std::string> flag_text(const toml::node& node, bool on_off) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* flag = node.as_boolean()) return on_off ? (flag->get() ? "on" : "off") : (flag->get() ? "true" : "false");
  if (const auto* number = node.as_floating_point()) {
    std::ostringstream out;
    out << number->get();
    return out.str();
  }
  return std::nullopt;
}

}  // namespace

ApiKey parse_api_key(const std::string& text) {
  const size_t equals = text.find('=');
  // A key may end in "=" itself (base64): only a plain name before it, and something behind it, make a tenant.
  if (equals == std::string::npos || equals == 0 || equals > kTenantBytesMax || text.find_first_not_of('=', equals) == std::string::npos) {
    return {"default", text};
  }
  const bool plain = std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(equals),
                                 [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; });
  return plain ? ApiKey{text.substr(0, equals), text.substr(equals + 1)} : ApiKey{"default", text};
}

ServeArguments::ServeArguments(CLI::App& app) : app_(app) {
  app_.add_option("--config", config_file_, "TOML file with any of these flags, names without the dashes in front; flags win")
      ->type_name("FILE");
  add_model_flags();
  add_network_flags();
  add_engine_flags();
  add_cache_flags();
  add_limit_flags();
}

void ServeArguments::add_model_flags() {
  const auto add = [this](const char* name, auto& target, const char* help) { return app_.add_option(name, target, help)->group("Model"); };
  add("--model", options_.model, "a GGUF file, or a name that `kvtide model list` shows; default: the default model")
      ->type_name("PATH|NAME");
  add("--alias", options_.alias, "the model name that clients see")->type_name("NAME");
  app_.add_flag("--strict-model", options_.strict_model, "refuse requests for a model of another name")->group("Model");
  add("--engine", options_.engine, "what computes")->check(one_of({"llamacpp", "fake"}))->capture_default_str();
}

void ServeArguments::add_network_flags() {
  const auto add = [this](const char* name, auto& target, const char* help) {
    return app_.add_option(name, target, help)->group("Network");
  };
  add("--host", options_.host, "address to listen on")->capture_default_str()->type_name("ADDRESS");
  add("--port", options_.port, "port to listen on; 0: any free one")->capture_default_str();
  add("--port-file", options_.port_file, "write the port here once the server listens")->type_name("FILE");
  add("--api-key", keys_, "a key that clients must show; tenant=KEY names its tenant; repeatable")
      ->type_name("KEY")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add("--api-key-file", api_key_file_, "keys, one a line")->type_name("FILE");
  add("--admin-key", options_.admin_key, "the key of the admin API; needed as soon as any key is set")->type_name("KEY");
}

void ServeArguments::add_engine_flags() {
  const auto add = [this](const char* name, auto& target, const char* help) {
    return app_.add_option(name, target, help)->group("Engine (names as in llama.cpp)");
  };
  add("--threads", options_.threads, "CPU threads that generate; 0: one a physical core")->check(at_least(0));
  add("--threads-batch", options_.threads_batch, "CPU threads for prompts; 0: as --threads")->check(at_least(0));
  add("--gpu-layers", options_.gpu_layers, "layers on the accelerator; -1: all when there is one")->check(at_least(-1));
  add("--flash-attn", options_.flash_attn, "flash attention")->check(one_of({"on", "off", "auto"}))->capture_default_str();
  add("--cache-type-k", options_.cache_type_k, "type of cached keys, such as f16 or q8_0")->type_name("TYPE")->capture_default_str();
  add("--cache-type-v", options_.cache_type_v, "type of cached values")->type_name("TYPE")->capture_default_str();
  add("--batch-size", options_.batch_size, "tokens in one step at most")->check(at_least(1))->capture_default_str();
  add("--ubatch-size", options_.ubatch_size, "tokens computed at once at most")->check(at_least(1))->capture_default_str();
  add("--ctx-size", options_.ctx_size, "tokens one request may use, prompt and reply; 0: as the model allows")->check(at_least(0));
  add("--parallel", options_.parallel, "requests that run at once")->check(at_least(1))->capture_default_str();
}

void ServeArguments::add_cache_flags() {
  const auto add = [this](const char* name, auto& target, const char* help) { return app_.add_option(name, target, help)->group("Cache"); };
  add("--device-tokens", options_.device_tokens, "KV cells on the device in all; 0: ctx-size x parallel")->check(at_least(0));
  add("--layout", options_.layout, "one pool of cells, or one lane a request")
      ->check(one_of({"auto", "unified", "lanes"}))
      ->capture_default_str();
  add("--block-tokens", options_.block_tokens, "tokens of a block, the unit of sharing")->check(at_least(1))->capture_default_str();
  add("--host-memory", options_.host_memory_bytes, "host memory for idle sessions, such as 512M or 4G; 0: none (default 1G)")
      ->transform(as_bytes())
      ->type_name("BYTES");
  add("--policy", options_.policy, "what is forgotten first")->check(one_of({"lru", "affinity", "rfc52113"}))->capture_default_str();
  add("--schedule", options_.schedule, "who goes next: by arrival, or who is nearest to its first token")->check(one_of({"fcfs", "affinity"}))->capture_default_str();
  add("--hints", hints_, "use what clients tell about their sessions")->check(one_of({"on", "off"}))->capture_default_str();
  add("--copy-budget-ms", options_.copy_budget_ms, "time for host copies in a turn while someone decodes")
      ->check(at_least(0))
      ->capture_default_str();
}

void ServeArguments::add_limit_flags() {
  const auto add = [this](const char* name, auto& target, const char* help) {
    return app_.add_option(name, target, help)->group("Limits");
  };
  add("--max-queue", options_.max_queue, "requests that may wait; above it the answer is 429")->check(at_least(1))->capture_default_str();
  add("--max-body", options_.max_body_bytes, "largest request body (default 64M)")
      ->transform(as_bytes())
      ->check(at_least(1024))
      ->type_name("BYTES");
  add("--max-connections", options_.max_connections, "open connections")->check(at_least(1))->capture_default_str();
  add("--max-sessions", options_.max_sessions, "sessions remembered")->check(at_least(1))->capture_default_str();
  add("--drain-timeout", options_.drain_timeout_s, "seconds that running requests get at the end")
      ->check(at_least(0))
      ->capture_default_str();
  add("--log-level", options_.log_level, "what is logged: debug adds the engine's own lines, warn leaves out ours")
      ->check(one_of({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app_.add_option("--record-trace", options_.record_trace,
                  "record every request for `kvtide sim --trace FILE`: hashes, counts, times and tool names, no text; FILE must not exist")
      ->type_name("FILE")
      ->group("Limits");
  app_.add_flag("--allow-forced-replies", options_.allow_forced_replies,
                "accept kvtide_forced_reply in requests: for tests and replay only")
      ->group("Limits");
}

base::Status ServeArguments::apply_config() {
  if (config_file_.empty()) return {};
  std::ifstream in(config_file_);
  if (!in) return error(Code::kInvalidArgument, "--config: cannot read '" + config_file_ + "'");
  const auto bad = [this](const toml::source_region& where, const std::string& what) {
    return error(Code::kInvalidArgument, config_file_ + ":" + std::to_string(where.begin.line) + ": " + what);
  };
  toml::table table;
  try {
    table = toml::parse(in, config_file_);
  } catch (const toml::parse_error& e) {
    return bad(e.source(), std::string(e.description()));
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    CLI::Option* option = app_.get_option_no_throw("--" + name);
    if (option == nullptr || name == "config" || name == "help")
      return bad(key.source(), "unknown key '" + name + "'; `kvtide serve --help` lists them");
    if (option->count() > 0) continue;  // the command line said it
    const bool on_off = name == "hints" || name == "flash-attn";
    std::vector<std::string> values;
    bool usable = true;
    const auto take = [&](const toml::node& value) {
      auto text = flag_text(value, on_off);
      usable = usable && text.has_value();
      if (text) values.push_back(std::move(*text));
    };
    if (const auto* list = node.as_array(); list != nullptr && name == "api-key") {
      for (const toml::node& value : *list) take(value);
    } else {
      take(node);
    }
    if (!usable) return bad(node.source(), "'" + name + "' cannot be a table, list or date");
    if (values.empty()) continue;
    try {
      option->add_result(std::move(values));
      option->run_callback();
    } catch (const CLI::Error& e) {
      return bad(node.source(), e.what());
    }
  }
  return {};
}

base::Status ServeArguments::read_keys() {
  if (!api_key_file_.empty()) {
    std::ifstream in(api_key_file_);
    if (!in) return error(Code::kInvalidArgument, "--api-key-file: cannot read '" + api_key_file_ + "'");
    for (std::string line; std::getline(in, line);) {
      while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.pop_back();
      if (!line.empty() && line.front() != '#') keys_.push_back(std::move(line));
    }
  }
  for (const std::string& key : keys_) {
    if (key.empty()) return error(Code::kInvalidArgument, "--api-key: a key must not be empty");
    options_.api_keys.push_back(parse_api_key(key));
  }
  if (!api_key_file_.empty() && options_.api_keys.empty()) {
    return error(Code::kInvalidArgument, "--api-key-file: '" + api_key_file_ + "' holds no key; an open server needs no such flag");
  }
  return {};
}

base::Result<ServeOptions> ServeArguments::finish() {
  options_.api_keys.clear();
  if (auto s = apply_config(); !s) return tl::make_unexpected(s.error());
  if (auto s = read_keys(); !s) return tl::make_unexpected(s.error());
  options_.hints = hints_ == "on";
  const auto bad = [](const char* what) { return error(Code::kInvalidArgument, what); };
  if (options_.ubatch_size > options_.batch_size) return bad("--ubatch-size: must not be above --batch-size");
  if (options_.ctx_size > 0 && options_.ctx_size < options_.block_tokens)
    return bad("--ctx-size: must hold one block (--block-tokens) at least");
  if (options_.device_tokens > 0 && options_.ctx_size > options_.device_tokens) {
    return bad("--device-tokens: must be at least --ctx-size, so that one request fits");
  }
  return options_;
}

base::Result<ServeOptions> parse_serve_options(const std::vector<std::string>& arguments) {
  CLI::App app;
  ServeArguments serve(app);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::Error& e) {
    return error(Code::kInvalidArgument, e.what());
  }
  return serve.finish();
}

}  // namespace kvtide::app
