#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hint/receipt_json.h"
#include "hint/receipt_log.h"

namespace kvtide::hint {
namespace {

using nlohmann::json;

Receipt receipt(std::string id, Outcome status, int64_t bytes = 0) {
  Receipt made;
  made.hint_id = std::move(id);
  made.verb = "offload";
  made.status = status;
  made.session_id = "s";
  made.bytes = bytes;
  return made;
}

TEST(ReceiptJson, CarriesEveryDocumentedField) {
  Receipt moved = receipt("h-7", Outcome::kApplied, 73400320);
  moved.generation = 3;
  moved.blocks = 140;
  moved.from = "device";
  moved.to = "host";
  moved.shared_kept = 12;
  EXPECT_EQ(receipt_json(moved),
            json::parse(R"({"hint_id": "h-7", "verb": "offload", "status": "applied", "session_id": "s", "generation": 3,
    "blocks": 140, "bytes": 73400320, "from": "device", "to": "host", "shared_kept": 12, "reason": null})"));
}

TEST(ReceiptJson, FieldsWithoutAValueStayThere) {
  EXPECT_EQ(receipt_json(receipt("h", Outcome::kMissing)),
            json::parse(
                R"({"hint_id": "h", "verb": "offload", "status": "missing", "session_id": "s", "generation": 0,
    "blocks": 0, "bytes": 0, "from": null, "to": null, "shared_kept": 0, "reason": null})"));
}

TEST(ReceiptJson, ResultHasBothListsEvenWhenEmpty) {
  EXPECT_EQ(hint_result_json({}, {}).dump(), R"({"problems":[],"receipts":[]})");
  const std::vector<Receipt> receipts = {receipt("a", Outcome::kDeferred), receipt("b", Outcome::kStale)};
  const std::vector<Problem> problems = {{"agent_hint.turn_num", "must be 1 or more"}};
  const json result = hint_result_json(receipts, problems);
  EXPECT_EQ(result["receipts"][1]["status"], "stale");
  EXPECT_EQ(result["problems"], json::parse(R"([{"field": "agent_hint.turn_num", "message": "must be 1 or more"}])"));
}

TEST(ReceiptLog, FindsWhatWasPut) {
  ReceiptLog log(4);
  EXPECT_EQ(log.find("t", "h"), std::nullopt);
  log.put("t", receipt("h", Outcome::kApplied, 5));
  EXPECT_EQ(log.find("t", "h"), receipt("h", Outcome::kApplied, 5));
}

TEST(ReceiptLog, DeferredHintIsCompletedInPlace) {
  ReceiptLog log(4);
  log.put("t", receipt("h", Outcome::kDeferred));
  log.put("t", receipt("h", Outcome::kApplied, 9));
  EXPECT_EQ(log.size("t"), 1u);
  EXPECT_EQ(log.find("t", "h")->status, Outcome::kApplied);
}

TEST(ReceiptLog, RepeatedHintAnswersDuplicateAndTheFirstReceiptStays) {
  ReceiptLog log(4);
  EXPECT_EQ(log.duplicate_of("t", "h"), std::nullopt);
  log.put("t", receipt("h", Outcome::kApplied, 9));
  const std::optional<Receipt> again = log.duplicate_of("t", "h");
  EXPECT_EQ(again, receipt("h", Outcome::kDuplicate, 9));
  log.put("t", *again);
  EXPECT_EQ(log.find("t", "h")->status, Outcome::kApplied);
}

TEST(ReceiptLog, ForgetsTheOldestFirst) {
  ReceiptLog log(2);
  log.put("t", receipt("a", Outcome::kDeferred));
  log.put("t", receipt("b", Outcome::kApplied));
  log.put("t", receipt("a", Outcome::kApplied));  // written again: b is now the oldest
  log.put("t", receipt("c", Outcome::kApplied));
  EXPECT_EQ(log.size("t"), 2u);
  EXPECT_EQ(log.find("t", "b"), std::nullopt);
  EXPECT_TRUE(log.find("t", "a").has_value());
  EXPECT_TRUE(log.find("t", "c").has_value());
}

TEST(ReceiptLog, TenantsNeitherSeeNorCrowdEachOther) {
  ReceiptLog log(2);
  log.put("quiet", receipt("h", Outcome::kApplied));
  for (int i = 0; i < 100; ++i) log.put("busy", receipt("h" + std::to_string(i), Outcome::kApplied));
  EXPECT_TRUE(log.find("quiet", "h").has_value());
  EXPECT_EQ(log.find("busy", "h"), std::nullopt);
  EXPECT_EQ(log.size("busy"), 2u);
}

}  // namespace
}  // namespace kvtide::hint
