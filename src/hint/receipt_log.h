// The newest receipt of each recent hint, by tenant and hint id: what a repeated hint is answered with, and what clients read later.
//
// Bounded per tenant, so that a busy tenant makes no other's receipts go; tenants come from the configuration and are few. When a tenant
// has `capacity` receipts, the one written longest ago is forgotten, and that hint id then counts as new.
//
// Threading: confined to the loop. No clock, no I/O. Cost: O(1).
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "hint/hint.h"

namespace kvtide::hint {

class ReceiptLog {
 public:
  /// REQUIRES: capacity_per_tenant > 0.
  explicit ReceiptLog(size_t capacity_per_tenant);
  ReceiptLog(const ReceiptLog&) = delete;
  ReceiptLog& operator=(const ReceiptLog&) = delete;

  std::optional<Receipt> find(std::string_view tenant, std::string_view hint_id) const;

  /// The answer to a hint that comes again: the receipt so far with status `duplicate`. Nothing for an id not seen or forgotten.
  std::optional<Receipt> duplicate_of(std::string_view tenant, std::string_view hint_id) const;

  /// Records `receipt`, in place of an earlier one of the same id. A `duplicate` receipt is not recorded: it would hide the real one.
  /// REQUIRES: a hint_id.
  void put(std::string_view tenant, Receipt receipt);

  size_t size(std::string_view tenant) const;

 private:
  // Receipts by age of their last write, oldest first. The keys of by_id view the ids inside the list, whose nodes never move; an entry is
  // erased before its node, and a hint_id is never changed in place.
  struct Tenant {
    std::list<Receipt> by_age;
    std::unordered_map<std::string_view, std::list<Receipt>::iterator> by_id;
  };

  const Receipt* lookup(std::string_view tenant, std::string_view hint_id) const;

  size_t capacity_;
  std::map<std::string, Tenant, std::less<>> tenants_;
};

}  // namespace kvtide::hint
