#include "server/http/auth.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/hash.h"

namespace kvtide::server {
namespace {

/// The key a request shows: "Authorization: Bearer KEY", else "x-api-key: KEY", else nothing.
std::string_view shown_key(const Headers& headers) {
  if (const auto found = headers.find("authorization"); found != headers.end()) {
    std::string_view value = found->second;
    constexpr std::string_view kBearer = "bearer ";
    const bool bearer = value.size() > kBearer.size() && std::equal(kBearer.begin(), kBearer.end(), value.begin(), [](char a, char b) {
                          return a == std::tolower(static_cast<unsigned char>(b));
                        });
    if (bearer) {
      value.remove_prefix(kBearer.size());
      while (value.starts_with(' ')) value.remove_prefix(1);
      return value;
    }
  }
  if (const auto found = headers.find("x-api-key"); found != headers.end()) return found->second;
  return {};
}

}  // namespace

Auth::Auth(std::map<std::string, std::vector<std::string>> api_keys, std::string admin_key) : admin_key_(std::move(admin_key)) {
  for (auto& [tenant, keys] : api_keys) {
    for (std::string& key : keys) {
      if (!key.empty()) tenant_keys_.emplace_back(tenant, std::move(key));
    }
  }
}

std::optional<Caller> Auth::identify(const Headers& headers, Access access) const {
  if (access == Access::kOpen) return Caller{};
  if (tenant_keys_.empty() && admin_key_.empty()) return Caller{.admin = access != Access::kTenant};
  if (access == Access::kTenant && tenant_keys_.empty()) return Caller{};

  const std::string_view key = shown_key(headers);
  const std::string* tenant = nullptr;
  for (const auto& [owner, owner_key] : tenant_keys_) {
    if (base::equal_constant_time(owner_key, key)) tenant = &owner;
  }
  const bool admin = !admin_key_.empty() && base::equal_constant_time(admin_key_, key);
  if (admin && access != Access::kTenant) return Caller{.admin = true};
  if (tenant != nullptr && access != Access::kAdmin) return Caller{.tenant = *tenant};
  // Without API keys an agent may still hint for the one tenant; what the admin sees stays closed.
  if (access == Access::kTenantOrAdmin && tenant_keys_.empty()) return Caller{};
  return std::nullopt;
}

}  // namespace kvtide::server
