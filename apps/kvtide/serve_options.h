// Everything `kvtide serve` can be told: one plain struct, filled from flags and from a TOML file with the same names.
//
// Threading: value types; confined to the main thread.
// Errors: kInvalidArgument that names the flag, or the file, line and key.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvtide::app {

struct ApiKey {
  std::string tenant;
  std::string key;
  friend bool operator==(const ApiKey&, const ApiKey&) = default;
};

struct ServeOptions {
  // What is served
  std::string model;          // a path or a catalogue name; empty: the default model
  std::string alias;          // the name clients see; empty: the model's own
  bool strict_model = false;  // refuse other names
  std::string engine = "llamacpp";

  // Where, and to whom
  std::string host = "127.0.0.1";
  uint16_t port = 8080;          // 0: any free one
  std::string port_file;         // the chosen port is written here once the server listens; empty: nowhere
  std::vector<ApiKey> api_keys;  // of --api-key and --api-key-file; empty: no key is asked for
  std::string admin_key;

  // How the engine runs. 0 or empty where it says auto: the engine decides
  int32_t threads = 0;        // auto
  int32_t threads_batch = 0;  // auto: as threads
  int32_t gpu_layers = -1;    // auto
  std::string flash_attn = "auto";
  std::string cache_type_k = "f16";
  std::string cache_type_v = "f16";
  int32_t batch_size = 2048;
  int32_t ubatch_size = 512;
  int32_t ctx_size = 0;  // auto: what the model was trained for
  int32_t parallel = 4;
  int64_t device_tokens = 0;  // auto: ctx_size x parallel
  std::string layout = "auto";

  // The cache
  int32_t block_tokens = 64;
  int64_t host_memory_bytes = int64_t{1} << 30;
  std::string policy = "affinity";
  std::string schedule = "affinity";
  bool hints = true;

  // Limits
  int64_t max_queue = 256;
  int64_t max_body_bytes = int64_t{64} << 20;
  int64_t max_connections = 512;
  int64_t max_sessions = 100000;
  double drain_timeout_s = 10;
  double copy_budget_ms = 2;

  std::string log_level = "info";
  std::string record_trace;           // a new file that requests are recorded to; empty: none
  bool allow_forced_replies = false;  // test and replay only
};

/// Registers the flags on a subcommand. finish() must run after a parse.
class ServeArguments {
 public:
  explicit ServeArguments(CLI::App& app);
  ServeArguments(const ServeArguments&) = delete;
  ServeArguments& operator=(const ServeArguments&) = delete;

  /// Reads the config file (flags win over it) and the key file, and checks what belongs together.
  base::Result<ServeOptions> finish();

 private:
  void add_model_flags();
  void add_network_flags();
  void add_engine_flags();
  void add_cache_flags();
  void add_limit_flags();
  base::Status apply_config();
  base::Status read_keys();

  CLI::App& app_;
  ServeOptions options_;
  std::string config_file_;
  std::string api_key_file_;
  std::string hints_ = "on";
  std::vector<std::string> keys_;
};

/// "tenant=KEY" or "KEY" (tenant "default").
ApiKey parse_api_key(const std::string& text);

/// Options from arguments as a shell would give them, without the program's name: for tests and for tools.
base::Result<ServeOptions> parse_serve_options(const std::vector<std::string>& arguments);

}  // namespace kvtide::app
