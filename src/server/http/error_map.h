// Errors as OpenAI clients know them: one table from base::Code to HTTP status and error type.
//
// Threading: free functions, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/message.h"

namespace kvtide::server {

struct ErrorClass {
  base::Code code;
  int status;
  std::string_view type;    // error.type of OpenAI
  int retry_after_s;        // 0: no Retry-After
};

const ErrorClass& error_class(base::Code code);

/// {"error": {...}} as text. An error message of the form "field.name[0]: what" fills `param`.
std::string error_body(std::string_view message, std::string_view type, std::string_view code);

Response error_response(const base::Error& error);

/// An answer for trouble that has an HTTP status of its own (401, 404, 405, 413 ...).
Response status_response(int status, std::string_view message, std::string_view code);

}  // namespace kvtide::server
