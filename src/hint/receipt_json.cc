#include "hint/receipt_json.h"

#include <nlohmann/json.hpp>

namespace kvtide::hint {
namespace {

using nlohmann::json;

json text_or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

}  // namespace

json receipt_json(const Receipt& receipt) {
  return {{"hint_id", receipt.hint_id},
          {"verb", receipt.verb},
          {"status", outcome_name(receipt.status)},
          {"session_id", receipt.session_id},
          {"generation", receipt.generation},
          {"blocks", receipt.blocks},
          {"bytes", receipt.bytes},
          {"from", text_or_null(receipt.from)},
          {"to", text_or_null(receipt.to)},
          {"shared_kept", receipt.shared_kept},
          {"reason", text_or_null(receipt.reason)}};
}

json problem_json(const Problem& problem) { return {{"field", problem.field}, {"message", problem.message}}; }

json hint_result_json(std::span<const Receipt> receipts, std::span<const Problem> problems) {
  json result = {{"receipts", json::array()}, {"problems", json::array()}};
  for (const Receipt& receipt : receipts) result["receipts"].push_back(receipt_json(receipt));
  for (const Problem& problem : problems) result["problems"].push_back(problem_json(problem));
  return result;
}

}  // namespace kvtide::hint
