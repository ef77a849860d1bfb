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
  const std::vector<serving::TierSnapshot> tiers{{.name = "device"}, {.name = "host", .used_bytes = 5}};
  const std::string text = metrics_text(stats, tiers, 2);

  EXPECT_THAT(text, HasSubstr("kvtide_reused_tokens_total{tier=\"host\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("kvtide_hints_total{dialect=\"seed\",verb=\"offload\",status=\"applied\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("dialect=\"odd\\\"name\""));
  EXPECT_THAT(text, HasSubstr("kvtide_tier_used_bytes{tier=\"host\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("kvtide_http_connections 2\n"));

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
