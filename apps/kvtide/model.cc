// `kvtide model list | pull`: models from the catalogue.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "apps/kvtide/commands.h"
#include "apps/kvtide/model_catalog.h"
#include "apps/kvtide/model_pull.h"
#include "apps/kvtide/sizes.h"

namespace kvtide::app {
namespace {

constexpr int kBarWidth = 30;

int run_list() {
  for (const CatalogModel& model : model_catalog()) {
    const auto file = pulled_file(model, model_folder());
    std::printf("%-20s %10s  context %-6lld %-10s  %s\n", model.name.c_str(), format_bytes(model.bytes).c_str(),
                static_cast<long long>(model.context_tokens), file ? "present" : "not here", model.description.c_str());
    std::printf("%20s licence %s, sha256 %s\n", "", model.licence.c_str(), model.sha256.c_str());
    if (file) std::printf("%20s %s\n", "", file->c_str());
  }
  return kExitDone;
}

void show_progress(const PullProgress& p) {
  const double share = p.bytes_total == 0 ? 0 : static_cast<double>(p.bytes) / static_cast<double>(p.bytes_total);
  const int filled = static_cast<int>(share * kBarWidth);
  std::fprintf(stderr, "\r\033[K%-16s [%.*s%*s] %3.0f %%  %s of %s", p.step.c_str(), filled, "##############################",
               kBarWidth - filled, "", 100 * share, format_bytes(p.bytes).c_str(), format_bytes(p.bytes_total).c_str());
  std::fflush(stderr);
}

int run_pull(const std::string& name) {
  const CatalogModel* model = name.empty() ? &default_model() : find_model(name);
  if (model == nullptr)
    return fail({base::Code::kInvalidArgument, "no model is called '" + name + "'; `kvtide model list` shows the names"});
  bool shown = false;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::string last_step;
  const auto file = pull_model(*model, model_folder(), [&](const PullProgress& p) {
    shown = true;
    if (terminal) {
      show_progress(p);
    } else if (p.step != last_step) {
      std::fprintf(stderr, "%s %s, %s of %s\n", model->name.c_str(), p.step.c_str(), format_bytes(p.bytes).c_str(),
                   format_bytes(p.bytes_total).c_str());
      last_step = p.step;
    }
  });
  if (shown && terminal) std::fputs("\r\033[K", stderr);
  if (!file) return fail(file.error());
  if (shown) std::printf("%s: %s\n", model->name.c_str(), file->c_str());
  return kExitDone;
}

}  // namespace

Command add_model(CLI::App& program) {
  CLI::App* app = program.add_subcommand("model", "list and fetch models");
  app->require_subcommand(1);
  app->footer("Example:\n  kvtide model list\n  kvtide model pull SmolLM2-135M");
  app->add_subcommand("list", "the catalogue, and what is on this machine")->footer("Example:\n  kvtide model list");
  CLI::App* pull = app->add_subcommand("pull", "fetch a model; goes on where it was broken off, and does nothing when all is there");
  pull->footer(
      "Examples:\n  kvtide model pull\n  kvtide model pull Qwen2.5-Coder-1.5B\nModels go to $KVTIDE_CACHE/models, or "
      "~/.cache/kvtide/models.");
  const auto name = std::make_shared<std::string>();
  pull->add_option("name", *name, "a name of the catalogue; default: the default model");
  return {app, [pull, name] { return pull->parsed() ? run_pull(*name) : run_list(); }};
}

}  // namespace kvtide::app
