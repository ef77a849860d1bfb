#include "server/admin/admin_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace kvtide::server {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, EveryFamilyIsDescribedOnceBeforeItsSamples) {
  serving::ServiceStats stats;
  stats.reused_host_tokens = 7;
  stats.hints = {{"seed/offload/applied", 3}, {"odd\"name", 1}};
  policy::TenantRegret red{.tenant = "red", .total = {.prompt = 100, .reused = 40, .lost = {0, 2, 12, 20}, .won = {16, 1, 0, 0}}};
  stats.regret.tenants = {red};
  const std::vector<serving::TierSnapshot> tiers{{.name = "device"}, {.name = "host", .used_bytes = 5}};
  const std::string text = metrics_text(stats, tiers, 2);

  EXPECT_THAT(text, HasSubstr("kvtide_reused_tokens_total{tier=\"host\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("kvtide_hints_total{dialect=\"seed\",verb=\"offload\",status=\"applied\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("dialect=\"odd\\\"name\""));
  EXPECT_THAT(text, HasSubstr("kvtide_tier_used_bytes{tier=\"host\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("kvtide_http_connections 2\n"));
  EXPECT_THAT(text, HasSubstr("kvtide_shadow_prompt_tokens_total{tenant=\"red\"} 100\n"));
  EXPECT_THAT(text, HasSubstr("kvtide_regret_lost_tokens_total{tenant=\"red\",against=\"lru_double\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("kvtide_regret_won_tokens_total{tenant=\"red\",against=\"lru_half\"} 16\n"));

  std::set<std::string> described;
  std::string family;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(described.insert(family).second) << family;
      EXPECT_EQ(line.ends_with("counter"), family.ends_with("_total")) << family;
    } else if (!line.starts_with("#")) {
      EXPECT_EQ(line.substr(0, line.find_first_of("{ ")), family);
    }
  }
}

TEST(AdminJson, RegretTellsWhatOthersWouldHaveReused) {
  serving::ServiceStats stats;
  stats.regret.capacity_blocks = 1000;
  stats.regret.all.last_hour = {.prompt = 100, .reused = 40, .compulsory = 30, .lost = {0, 2, 12, 20}, .won = {16, 1, 0, 0}};
  stats.regret.tenants = {{.tenant = "red", .total = {.prompt = 7}}};
  const AdminJson json = stats_json(stats)["regret"];
  EXPECT_EQ(json["capacity_blocks"], 1000);
  EXPECT_EQ(json["all"]["last_hour"]["compulsory"], 30);
  EXPECT_EQ(json["all"]["last_hour"]["hits"], (AdminJson{{"lru_half", 24}, {"lru", 41}, {"lru_double", 52}, {"optimal", 60}}));
  EXPECT_EQ(json["tenants"][0]["tenant"], "red");
  EXPECT_EQ(json["tenants"][0]["total"]["prompt"], 7);
}

TEST(AdminJson, SessionsShowWhatIsUnknownAsNull) {
  serving::SessionSnapshot session;
  session.session_id = "s";
  const AdminJson json = session_json(session);
  EXPECT_TRUE(json["parent_id"].is_null());
  EXPECT_TRUE(json["predicted_next_use_s"].is_null());
  EXPECT_EQ(json["blocks"]["device"], 0);
}

}  // namespace
}  // namespace kvtide::server
