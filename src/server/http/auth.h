// Who a request comes from, by its key.
//
// Keys are compared in constant time, and every configured key is looked at whatever matches.
// Threading: immutable after construction; thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/message.h"
#include "server/http/route.h"

namespace kvtide::server {

struct Caller {
  std::string tenant = "default";
  bool admin = false;  // may name the tenant it speaks for
};

class Auth {
 public:
  /// `api_keys`: tenant -> its keys. With neither kind of key everybody is the admin of the one tenant "default".
  Auth(std::map<std::string, std::vector<std::string>> api_keys, std::string admin_key);

  /// nullopt: refused. Cost: O(keys).
  std::optional<Caller> identify(const Headers& headers, Access access) const;

 private:
  std::vector<std::pair<std::string, std::string>> tenant_keys_;  // tenant, key
  std::string admin_key_;
};

}  // namespace kvtide::server
