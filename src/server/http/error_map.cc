#include "server/http/error_map.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace kvtide::server {
namespace {

using base::Code;

// 499 is what proxies log for a client that left; nobody reads that answer.
constexpr std::array kErrorClasses{
    ErrorClass{Code::kInvalidArgument, 400, "invalid_request_error", 0},
    ErrorClass{Code::kNotFound, 404, "not_found_error", 0},
    ErrorClass{Code::kResourceExhausted, 429, "rate_limit_error", 1},
    ErrorClass{Code::kUnavailable, 503, "service_unavailable_error", 2},
    // Not 501: clients retry every 5xx, and this will not get better.
    ErrorClass{Code::kUnsupported, 400, "invalid_request_error", 0},
    ErrorClass{Code::kCorrupt, 500, "server_error", 0},
    ErrorClass{Code::kCancelled, 499, "cancelled_error", 0},
    ErrorClass{Code::kDeadlineExceeded, 504, "timeout_error", 0},
    ErrorClass{Code::kInternal, 500, "server_error", 0},
};

/// The field in front of "field: message", or nothing.
std::string_view field_of(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return {};
  const std::string_view field = message.substr(0, colon);
  const bool is_field = std::ranges::all_of(field, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '[' || c == ']';
  });
  return is_field ? field : std::string_view();
}

std::string_view type_of_status(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

const ErrorClass& error_class(base::Code code) {
  const auto found = std::ranges::find(kErrorClasses, code, &ErrorClass::code);
  KV_CHECK(found != kErrorClasses.end());
  return *found;
}

std::string error_body(std::string_view message, std::string_view type, std::string_view code) {
  nlohmann::ordered_json error;
  error["message"] = message;
  error["type"] = type;
  const std::string_view field = field_of(message);
  error["param"] = field.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(field);
  error["code"] = code.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(code);
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Response error_response(const base::Error& error) {
  const ErrorClass& kind = error_class(error.code);
  Response response;
  response.status = kind.status;
  response.body = error_body(error.message, kind.type, base::code_name(error.code));
  if (kind.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(kind.retry_after_s));
  return response;
}

Response status_response(int status, std::string_view message, std::string_view code) {
  Response response;
  response.status = status;
  response.body = error_body(message, type_of_status(status), code);
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace kvtide::server
