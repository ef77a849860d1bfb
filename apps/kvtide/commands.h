// The subcommands of `kvtide`. Each add_*() registers its arguments on the program and returns what runs it; main picks by name.
//
// A run function prints errors as one line on stderr and returns the exit status: 0 done, 1 it failed, 2 the arguments are wrong.
//
// Threading: confined to the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "base/status.h"

namespace kvtide::app {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

Command add_serve(CLI::App& program);
Command add_replay(CLI::App& program);
Command add_sim(CLI::App& program);
Command add_model(CLI::App& program);
Command add_top(CLI::App& program);
Command add_sessions(CLI::App& program);
Command add_hint(CLI::App& program);
Command add_version(CLI::App& program);

/// Prints "kvtide: message" and gives the exit status that fits: 2 for arguments, 1 for the rest.
int fail(const base::Error& error);

/// --url and --api-key of the commands that talk to a running server.
struct ServerChoice {
  std::string url = "http://127.0.0.1:8080";
  std::string api_key;
  void add_to(CLI::App& app);
};

}  // namespace kvtide::app
