#include "server/openai/json_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvtide::server {
namespace {

using base::Code;
using base::error;

/// How deep `text` nests, were it JSON.
int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

base::Result<Json> parse_json(std::string_view text) {
  if (nesting_depth(text) > kJsonDepthMax) {
    return error(Code::kInvalidArgument, "the body nests deeper than " + std::to_string(kJsonDepthMax) + " levels");
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& failure) {
    return error(Code::kInvalidArgument, "the body is not JSON: trouble at byte " + std::to_string(failure.byte));
  } catch (const Json::exception&) {
    return error(Code::kInvalidArgument, "the body holds a number that is too large");
  }
}

base::Result<Json> parse_object(std::string_view text) {
  auto value = parse_json(text);
  if (value && !value->is_object()) return error(Code::kInvalidArgument, "the body must be a JSON object");
  return value;
}

std::string to_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

const Json* Fields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json* Fields::array(const char* name) {
  const Json* value = failed() ? nullptr : find(name);
  if (value != nullptr && !value->is_array()) fail(name, "must be an array");
  return failed() ? nullptr : value;
}

const Json* Fields::object(const char* name) {
  const Json* value = failed() ? nullptr : find(name);
  if (value != nullptr && !value->is_object()) fail(name, "must be an object");
  return failed() ? nullptr : value;
}

Fields& Fields::text(const char* name, std::string& out) {
  const Json* value = failed() ? nullptr : find(name);
  if (value == nullptr) return *this;
  if (!value->is_string()) return fail(name, "must be a string");
  out = value->get_ref<const std::string&>();
  return *this;
}

Fields& Fields::boolean(const char* name, bool& out) {
  const Json* value = failed() ? nullptr : find(name);
  if (value == nullptr) return *this;
  if (!value->is_boolean()) return fail(name, "must be true or false");
  out = value->get<bool>();
  return *this;
}

Fields& Fields::integer(const char* name, int64_t least, int64_t most, int32_t& out) {
  const Json* value = failed() ? nullptr : find(name);
  if (value == nullptr) return *this;
  const auto whole = whole_number(*value, least, most);
  if (!whole) return fail(name, "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  out = static_cast<int32_t>(*whole);
  return *this;
}

Fields& Fields::number(const char* name, double least, double most, float& out) {
  const Json* value = failed() ? nullptr : find(name);
  if (value == nullptr) return *this;
  const double read = value->is_number() ? value->get<double>() : std::nan("");
  if (!(read >= least && read <= most)) {
    return fail(name, "must be a number from " + to_text(Json(least)) + " to " + to_text(Json(most)));
  }
  out = static_cast<float>(read);
  return *this;
}

Fields& Fields::fail(std::string_view name, std::string_view message) {
  if (!failure_) failure_ = base::Error{Code::kInvalidArgument, path_of(name) + ": " + std::string(message)};
  return *this;
}

Fields& Fields::keep(base::Status status) {
  if (!status && !failure_) failure_ = std::move(status.error());
  return *this;
}

base::Status Fields::status() const {
  if (failure_) return tl::make_unexpected(*failure_);
  return {};
}

std::optional<int64_t> whole_number(const Json& value, int64_t least, int64_t most) {
  if (!value.is_number()) return std::nullopt;
  const double read = value.get<double>();
  // The comparison in floating point keeps huge and unsigned values away from the conversion.
  if (!(read >= static_cast<double>(least) && read <= static_cast<double>(most)) || std::floor(read) != read) return std::nullopt;
  const int64_t whole = value.is_number_integer() ? value.get<int64_t>() : static_cast<int64_t>(read);
  return whole >= least && whole <= most ? std::optional(whole) : std::nullopt;
}

}  // namespace kvtide::server
