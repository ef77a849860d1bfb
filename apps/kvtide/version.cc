#include <cstdio>

#include "apps/kvtide/commands.h"
#if KVTIDE_HAS_LLAMACPP
#include "engine/llamacpp/llamacpp.h"
#endif

namespace kvtide::app {

Command add_version(CLI::App& program) {
  CLI::App* app = program.add_subcommand("version", "what this is, and which engine it carries");
  app->footer("Example:\n  kvtide version");
  return {app, [] {
            std::printf("kvtide %s\n", KVTIDE_VERSION);
#if KVTIDE_HAS_LLAMACPP
            std::printf("engine: llama.cpp %s\n", engine::llamacpp_version().c_str());
#else
            std::printf("engine: fake\n");
#endif
            return kExitDone;
          }};
}

}  // namespace kvtide::app
