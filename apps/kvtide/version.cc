#include <cstdio>

#include "apps/kvtide/commands.h"
#if KVTIDE_HAS_ENGINE_VERSION
#include "apps/kvtide/engine_version.h"
#endif

namespace kvtide::app {

Command add_version(CLI::App& program) {
  CLI::App* app = program.add_subcommand("version", "what this is, and which engine it carries");
  app->footer("Example:\n  kvtide version");
  return {app, [] {
            std::printf("kvtide %s\n", KVTIDE_VERSION);
#if KVTIDE_HAS_ENGINE_VERSION
            std::printf("engine: %s\n", engine_version().c_str());
#elif defined(KVTIDE_LLAMA_VERSION)
            std::printf("engine: llama.cpp %s\n", KVTIDE_LLAMA_VERSION);
#else
            std::printf("engine: fake\n");
#endif
            return kExitDone;
          }};
}

}  // namespace kvtide::app
