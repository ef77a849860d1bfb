// `kvtide`: one program, a subcommand for each job.
#include <cstdio>
#include <vector>

#include "apps/kvtide/commands.h"

namespace {

using kvtide::app::Command;

int run(int argc, char** argv) {
  CLI::App program("kvtide: an OpenAI-compatible server that keeps each agent session's KV cache where it is needed next");
  program.require_subcommand(1);
  program.footer(
      "Start here:\n"
      "  kvtide model pull            fetch the default model\n"
      "  kvtide serve                 answer OpenAI clients on http://127.0.0.1:8080\n"
      "  kvtide <subcommand> --help   every flag, with an example");
  const std::vector<Command> commands{
      kvtide::app::add_serve(program),   kvtide::app::add_replay(program),   kvtide::app::add_sim(program),
      kvtide::app::add_model(program),
      kvtide::app::add_top(program),     kvtide::app::add_sessions(program), kvtide::app::add_hint(program),
      kvtide::app::add_version(program),
  };
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return program.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return program.exit(e);
  } catch (const CLI::Error& e) {
    std::string where = "kvtide";
    for (const CLI::App* sub = &program; sub != nullptr;) {
      const auto chosen = sub->get_subcommands();
      sub = chosen.empty() ? nullptr : chosen.front();
      if (sub != nullptr) where += " " + sub->get_name();
    }
    std::fprintf(stderr, "kvtide: %s (see `%s --help`)\n", e.what(), where.c_str());
    return kvtide::app::kExitUsage;
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kvtide::app::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kvtide: unexpected: %s\n", e.what());
    return kvtide::app::kExitFailed;
  }
}
