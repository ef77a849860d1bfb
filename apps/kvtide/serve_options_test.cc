#include "apps/kvtide/serve_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace kvtide::app {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class File {
 public:
  File(const std::string& name, const std::string& text)
      : path_(std::filesystem::path(testing::TempDir()) / (testing::UnitTest::GetInstance()->current_test_info()->name() + ("-" + name))) {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string problem_of(const std::vector<std::string>& arguments) {
  const auto options = parse_serve_options(arguments);
  return options ? "(no error)" : options.error().message;
}

TEST(ServeOptions, DefaultsListenOnLoopbackWithoutKeys) {
  const auto o = parse_serve_options({});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->host, "127.0.0.1");
  EXPECT_EQ(o->port, 8080);
  EXPECT_EQ(o->engine, "llamacpp");
  EXPECT_EQ(o->policy, "affinity");
  EXPECT_EQ(o->schedule, "affinity");
  EXPECT_TRUE(o->hints);
  EXPECT_FALSE(o->allow_forced_replies);
  EXPECT_TRUE(o->api_keys.empty());
  EXPECT_EQ(o->block_tokens, 64);
}

TEST(ServeOptions, EveryFlagOfTheListIsTaken) {
  const auto o = parse_serve_options({"--model",
                                      "m.gguf",
                                      "--host",
                                      "0.0.0.0",
                                      "--port",
                                      "0",
                                      "--port-file",
                                      "p",
                                      "--api-key",
                                      "a=K1",
                                      "--api-key",
                                      "K2",
                                      "--admin-key",
                                      "A",
                                      "--strict-model",
                                      "--alias",
                                      "x",
                                      "--engine",
                                      "fake",
                                      "--threads",
                                      "3",
                                      "--threads-batch",
                                      "4",
                                      "--gpu-layers",
                                      "7",
                                      "--flash-attn",
                                      "off",
                                      "--cache-type-k",
                                      "q8_0",
                                      "--cache-type-v",
                                      "q4_0",
                                      "--batch-size",
                                      "512",
                                      "--ubatch-size",
                                      "128",
                                      "--ctx-size",
                                      "2048",
                                      "--parallel",
                                      "2",
                                      "--device-tokens",
                                      "8192",
                                      "--layout",
                                      "lanes",
                                      "--block-tokens",
                                      "32",
                                      "--host-memory",
                                      "4G",
                                      "--policy",
                                      "lru",
                                      "--hints",
                                      "off",
                                      "--max-queue",
                                      "9",
                                      "--max-body",
                                      "8M",
                                      "--max-connections",
                                      "10",
                                      "--max-sessions",
                                      "11",
                                      "--drain-timeout",
                                      "1.5",
                                      "--copy-budget-ms",
                                      "0.5",
                                      "--log-level",
                                      "warn",
                                      "--record-trace",
                                      "t.jsonl",
                                      "--allow-forced-replies"});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->model, "m.gguf");
  EXPECT_EQ(o->port, 0);
  EXPECT_EQ(o->port_file, "p");
  EXPECT_THAT(o->api_keys, ElementsAre(ApiKey{"a", "K1"}, ApiKey{"default", "K2"}));
  EXPECT_EQ(o->admin_key, "A");
  EXPECT_TRUE(o->strict_model);
  EXPECT_EQ(o->engine, "fake");
  EXPECT_EQ(o->gpu_layers, 7);
  EXPECT_EQ(o->flash_attn, "off");
  EXPECT_EQ(o->cache_type_v, "q4_0");
  EXPECT_EQ(o->device_tokens, 8192);
  EXPECT_EQ(o->layout, "lanes");
  EXPECT_EQ(o->host_memory_bytes, int64_t{4} << 30);
  EXPECT_EQ(o->policy, "lru");
  EXPECT_FALSE(o->hints);
  EXPECT_EQ(o->max_body_bytes, int64_t{8} << 20);
  EXPECT_DOUBLE_EQ(o->drain_timeout_s, 1.5);
  EXPECT_DOUBLE_EQ(o->copy_budget_ms, 0.5);
  EXPECT_EQ(o->record_trace, "t.jsonl");
  EXPECT_TRUE(o->allow_forced_replies);
}

TEST(ServeOptions, ErrorsNameTheFlagAndWhatIsGood) {
  EXPECT_THAT(problem_of({"--policy", "fifo"}), AllOf(HasSubstr("--policy"), HasSubstr("lru|affinity")));
  EXPECT_THAT(problem_of({"--host-memory", "lots"}), AllOf(HasSubstr("--host-memory"), HasSubstr("4G")));
  EXPECT_THAT(problem_of({"--parallel", "0"}), AllOf(HasSubstr("--parallel"), HasSubstr("at least 1")));
  EXPECT_THAT(problem_of({"--port", "70000"}), HasSubstr("--port"));
  EXPECT_THAT(problem_of({"--speed", "high"}), HasSubstr("--speed"));
  EXPECT_THAT(problem_of({"--ctx-size", "4096", "--device-tokens", "2048"}), HasSubstr("--device-tokens"));
  EXPECT_THAT(problem_of({"--batch-size", "64", "--ubatch-size", "128"}), HasSubstr("--ubatch-size"));
}

TEST(ServeConfig, FillsWhatFlagsLeaveOpen) {
  const File file("c.toml",
                  "port = 9000\nhost-memory = \"2G\"\nhints = false\npolicy = \"lru\"\nstrict-model = true\napi-key = [\"a=K\", "
                  "\"L\"]\ndrain-timeout = 2.5\n");
  const auto o = parse_serve_options({"--config", file.path(), "--policy", "affinity"});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->port, 9000);
  EXPECT_EQ(o->host_memory_bytes, int64_t{2} << 30);
  EXPECT_FALSE(o->hints);
  EXPECT_TRUE(o->strict_model);
  EXPECT_EQ(o->policy, "affinity") << "the flag wins";
  EXPECT_THAT(o->api_keys, ElementsAre(ApiKey{"a", "K"}, ApiKey{"default", "L"}));
  EXPECT_DOUBLE_EQ(o->drain_timeout_s, 2.5);
}

TEST(ServeConfig, AnUnknownKeyIsAnErrorWithItsLine) {
  const File file("c.toml", "# mine\nport = 9000\nhost-memmory = \"2G\"\n");
  EXPECT_THAT(problem_of({"--config", file.path()}), AllOf(HasSubstr(file.path() + ":3"), HasSubstr("host-memmory")));
}

TEST(ServeConfig, ABadValueIsAnErrorWithItsLine) {
  const File file("c.toml", "port = 9000\n\npolicy = \"fifo\"\n");
  EXPECT_THAT(problem_of({"--config", file.path()}), AllOf(HasSubstr(file.path() + ":3"), HasSubstr("--policy")));
  const File table("t.toml", "[cache]\nhost-memory = \"2G\"\n");
  EXPECT_THAT(problem_of({"--config", table.path()}), AllOf(HasSubstr(table.path() + ":1"), HasSubstr("cache")));
}

TEST(ServeConfig, BrokenTomlAndMissingFilesAreErrors) {
  const File file("c.toml", "port = \n");
  EXPECT_THAT(problem_of({"--config", file.path()}), HasSubstr(file.path() + ":1"));
  EXPECT_THAT(problem_of({"--config", "/nowhere/c.toml"}), HasSubstr("--config"));
}

TEST(ApiKeys, ATenantIsAPlainNameBeforeTheFirstEqualsSign) {
  EXPECT_EQ(parse_api_key("team-a=sk-1"), (ApiKey{"team-a", "sk-1"}));
  EXPECT_EQ(parse_api_key("sk-1"), (ApiKey{"default", "sk-1"}));
  EXPECT_EQ(parse_api_key("c2VjcmV0=="), (ApiKey{"default", "c2VjcmV0=="})) << "base64 padding names no tenant";
  EXPECT_EQ(parse_api_key("a b=c"), (ApiKey{"default", "a b=c"}));
}

TEST(ApiKeys, AreReadFromAFileWithoutCommentsAndBlankLines) {
  const File file("keys", "# keys\nteam-a=K1\n\nK2  \n");
  const auto o = parse_serve_options({"--api-key-file", file.path()});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_THAT(o->api_keys, ElementsAre(ApiKey{"team-a", "K1"}, ApiKey{"default", "K2"}));
}

TEST(ApiKeys, AFileWithoutAnyDoesNotOpenTheServer) {
  const File file("keys", "# none\n");
  EXPECT_THAT(problem_of({"--api-key-file", file.path()}), HasSubstr("--api-key-file"));
}

}  // namespace
}  // namespace kvtide::app
