#include "apps/kvtide/commands.h"

#include <cstdio>
#include <memory>

#include "apps/kvtide/serve_options.h"
#if KVTIDE_HAS_SERVE
#include "apps/kvtide/serve.h"
#endif

namespace kvtide::app {

int fail(const base::Error& error) {
  std::fprintf(stderr, "kvtide: %s\n", error.message.c_str());
  return error.code == base::Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

void ServerChoice::add_to(CLI::App& app) {
  app.add_option("--url", url, "the server to ask")->envname("KVTIDE_URL")->capture_default_str();
  app.add_option("--api-key", api_key, "the admin key, where the server wants one")->envname("KVTIDE_ADMIN_KEY")->type_name("KEY");
}

Command add_serve(CLI::App& program) {
  CLI::App* app = program.add_subcommand("serve", "answer OpenAI clients, keeping sessions' KV cache across device and host memory");
  app->footer(
      "Examples:\n"
      "  kvtide serve\n"
      "  kvtide serve --model ~/models/some.gguf --parallel 8 --ctx-size 8192 --host-memory 8G\n"
      "  kvtide serve --config kvtide.toml      # the file says: host-memory = \"8G\"");
  const auto arguments = std::make_shared<ServeArguments>(*app);
  return {app, [arguments] {
            const auto options = arguments->finish();
            if (!options) return fail(options.error());
#if KVTIDE_HAS_SERVE
            return run_serve(*options);
#else
            return fail({base::Code::kUnsupported, "this build has no server"});
#endif
          }};
}

}  // namespace kvtide::app
