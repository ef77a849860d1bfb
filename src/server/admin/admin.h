// The admin API: what the server is, what its sessions and tiers hold, and hints without inference.
//
// Every answer comes from the Service's loop by a callback; nothing waits.
// Threading: handle() on the strand of the exchange.
#pragma once

#include <functional>
#include <memory>

#include "server/admin/admin_json.h"
#include "server/http/auth.h"
#include "server/http/message.h"
#include "server/http/route.h"
#include "serving/service.h"

namespace kvtide::server {

class Admin {
 public:
  /// `service` must outlive this; `connections` tells how many are open.
  Admin(serving::Service& service, ServerFacts facts, std::function<size_t()> connections)
      : service_(service), facts_(std::move(facts)), connections_(std::move(connections)) {}

  void handle(const Match& match, const Caller& caller, const Request& request, const std::shared_ptr<Exchange>& exchange);

 private:
  void metrics(const std::shared_ptr<Exchange>& exchange);
  void post_hints(const std::string& tenant, const std::string& body, const std::shared_ptr<Exchange>& exchange);
  void get_hint(const std::string& tenant, const std::string& id, const std::shared_ptr<Exchange>& exchange);
  void list_sessions(const Match& match, const std::shared_ptr<Exchange>& exchange);
  void get_session(const Match& match, const std::shared_ptr<Exchange>& exchange);
  void end_session(const std::string& tenant, const std::string& id, const std::shared_ptr<Exchange>& exchange);

  serving::Service& service_;
  const ServerFacts facts_;
  const std::function<size_t()> connections_;
};

}  // namespace kvtide::server
