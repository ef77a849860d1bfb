#include "hint/receipt_log.h"

#include <utility>

#include "base/check.h"

namespace kvtide::hint {

ReceiptLog::ReceiptLog(size_t capacity_per_tenant) : capacity_(capacity_per_tenant) { KV_CHECK(capacity_ > 0); }

const Receipt* ReceiptLog::lookup(std::string_view tenant, std::string_view hint_id) const {
  const auto owner = tenants_.find(tenant);
  if (owner == tenants_.end()) return nullptr;
  const auto found = owner->second.by_id.find(hint_id);
  return found == owner->second.by_id.end() ? nullptr : &*found->second;
}

std::optional<Receipt> ReceiptLog::find(std::string_view tenant, std::string_view hint_id) const {
  const Receipt* receipt = lookup(tenant, hint_id);
  return receipt == nullptr ? std::nullopt : std::optional(*receipt);
}

std::optional<Receipt> ReceiptLog::duplicate_of(std::string_view tenant, std::string_view hint_id) const {
  std::optional<Receipt> answer = find(tenant, hint_id);
  if (answer) answer->status = Outcome::kDuplicate;
  return answer;
}

void ReceiptLog::put(std::string_view tenant, Receipt receipt) {
  KV_CHECK(!receipt.hint_id.empty());
  if (receipt.status == Outcome::kDuplicate) return;
  auto owner = tenants_.find(tenant);
  if (owner == tenants_.end()) owner = tenants_.emplace(std::string(tenant), Tenant{}).first;
  auto& [by_age, by_id] = owner->second;

  const auto known = by_id.find(receipt.hint_id);
  const auto forgotten = known != by_id.end() ? known->second : by_age.begin();
  if (known != by_id.end() || by_age.size() == capacity_) {
    by_id.erase(forgotten->hint_id);
    by_age.erase(forgotten);
  }
  const auto newest = by_age.insert(by_age.end(), std::move(receipt));
  by_id.emplace(newest->hint_id, newest);
}

size_t ReceiptLog::size(std::string_view tenant) const {
  const auto owner = tenants_.find(tenant);
  return owner == tenants_.end() ? 0 : owner->second.by_age.size();
}

}  // namespace kvtide::hint
