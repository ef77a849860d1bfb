#include "apps/kvtide/model_catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "apps/kvtide/child_process.h"
#include "apps/kvtide/model_pull.h"

namespace kvtide::app {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(Catalog, PartsAddUpToTheWhole) {
  for (const CatalogModel& model : model_catalog()) {
    int64_t sum = 0;
    std::set<std::string> packages;
    for (const ModelPart& part : model.parts) {
      sum += part.bytes;
      packages.insert(part.package);
      EXPECT_EQ(part.sha256.size(), 64u) << part.package;
      EXPECT_THAT(part.package, HasSubstr("==")) << "pinned";
    }
    EXPECT_EQ(sum, model.bytes) << model.name;
    EXPECT_EQ(packages.size(), model.parts.size());
    EXPECT_EQ(model.sha256.size(), 64u);
  }
  EXPECT_EQ(find_model("qwen2.5-coder-1.5b")->parts.size(), 22u) << "names are taken in any case";
}

class Models : public testing::Test {
 protected:
  Models() : folder_(std::move(*TemporaryFolder::make())) {}
  /// A sparse file of the right size stands for the model.
  void put(const std::string& name, int64_t bytes) const {
    std::ofstream(folder_.path() / name) << "x";
    fs::resize_file(folder_.path() / name, static_cast<uintmax_t>(bytes));
  }
  TemporaryFolder folder_;
};

TEST_F(Models, ThatAreMissingSayHowToGetThem) {
  const auto file = resolve_model("", folder_.path());
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("kvtide model pull SmolLM2-135M"));
  EXPECT_THAT(resolve_model("no-such", folder_.path()).error().message, AllOf(HasSubstr("--model"), HasSubstr("kvtide model list")));
  EXPECT_THAT(resolve_model(folder_.path().string(), folder_.path()).error().message, HasSubstr("is a folder"));
}

TEST_F(Models, AreFoundByNameInAnyCaseOrByPath) {
  put(default_model().file_name, default_model().bytes);
  EXPECT_EQ(resolve_model("", folder_.path()).value(), folder_.path() / default_model().file_name);
  EXPECT_EQ(resolve_model("smollm2-135m", folder_.path()).value(), folder_.path() / default_model().file_name);
  put("own.gguf", 10);
  EXPECT_EQ(resolve_model((folder_.path() / "own.gguf").string(), folder_.path()).value(), folder_.path() / "own.gguf");
}

TEST_F(Models, OfTheWrongSizeDoNotCount) {
  put(default_model().file_name, default_model().bytes - 1);
  EXPECT_FALSE(resolve_model("", folder_.path()));
}

TEST_F(Models, TheTunedFileIsPreferred) {
  put(default_model().file_name, default_model().bytes);
  put(default_model().tuned_file, 10);
  EXPECT_EQ(resolve_model("", folder_.path()).value(), folder_.path() / default_model().tuned_file);
}

TEST_F(Models, WithAPartThatIsPresentAreJoinedAndVerified) {
  CatalogModel model{.name = "m",
                     .file_name = "m.gguf",
                     .tuned_file = "",
                     .description = "",
                     .licence = "",
                     .context_tokens = 1,
                     .bytes = 6,
                     .sha256 = "",
                     .parts = {{"a==1", "a", 3, ""}, {"b==1", "b", 3, ""}}};
  const auto place_parts = [&] {
    fs::create_directories(folder_.path() / "m.gguf.parts");
    std::ofstream(folder_.path() / "m.gguf.parts" / "part1") << "abc";
    std::ofstream(folder_.path() / "m.gguf.parts" / "part2") << "def";
  };
  place_parts();
  model.sha256 = std::string(64, '0');
  const auto bad = pull_model(model, folder_.path(), {});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, base::Code::kCorrupt);
  EXPECT_FALSE(fs::exists(folder_.path() / "m.gguf")) << "nothing unverified ever has the model's name";

  place_parts();
  model.sha256 = "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721";  // of "abcdef"
  std::vector<std::string> steps;
  const auto good = pull_model(model, folder_.path(), [&](const PullProgress& p) { steps.push_back(p.step); });
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(file_sha256(*good).value(), model.sha256);
  EXPECT_FALSE(fs::exists(folder_.path() / "m.gguf.parts"));
  EXPECT_THAT(steps, testing::Contains("verifying"));

  steps.clear();
  EXPECT_TRUE(pull_model(model, folder_.path(), [&](const PullProgress& p) { steps.push_back(p.step); }));
  EXPECT_TRUE(steps.empty()) << "a second pull is quiet";
}

TEST(Children, EndWithTheirStatusAndCannotOutstayTheirDeadline) {
  const auto folder = TemporaryFolder::make();
  auto quick = ChildProcess::start({"sh", "-c", "echo said; exit 3"}, folder->path() / "log");
  ASSERT_TRUE(quick);
  EXPECT_EQ(quick->wait(std::chrono::seconds(10)), 3);
  EXPECT_EQ(last_lines(folder->path() / "log", 1), "said\n");
  auto stubborn =
      ChildProcess::start({"sh", "-c", "trap '' TERM; echo ready; while :; do read x; done < /dev/zero"}, folder->path() / "log2");
  ASSERT_TRUE(stubborn);
  EXPECT_FALSE(stubborn->wait(std::chrono::milliseconds(50)));
  EXPECT_GE(stubborn->stop(std::chrono::milliseconds(50)), 128);
  auto missing = ChildProcess::start({"/no/such/program"}, folder->path() / "log3");
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->wait(std::chrono::seconds(10)), 127);
}

}  // namespace
}  // namespace kvtide::app
