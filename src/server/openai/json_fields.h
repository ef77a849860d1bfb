// Reading JSON that strangers wrote: parsing with limits, and typed access to the fields of one object with errors that name the field.
//
// Objects keep the order of their keys: tool and answer schemas reach the template and the grammar as the client wrote them.
//
// Threading: thread-compatible.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvtide::server {

using Json = nlohmann::ordered_json;

inline constexpr int kJsonDepthMax = 128;  // of nested arrays and objects; printing recurses

/// Errors: kInvalidArgument (not JSON, nested too deeply), with the byte position and no text of the body. O(bytes).
base::Result<Json> parse_json(std::string_view text);
/// The same for a body that must be an object.
base::Result<Json> parse_object(std::string_view text);

/// The text of `value`; bytes that are not UTF-8 are replaced.
std::string to_text(const Json& value);

/// The fields of one object. Absent and null fields leave the output as it is. The first failure is kept; later reads do nothing.
class Fields {
 public:
  /// `path` is what errors put in front of the name, "" or like "messages[2].". REQUIRES: `object` is an object and outlives this.
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  /// nullptr when absent or null.
  const Json* find(const char* name) const;
  const Json* array(const char* name);
  const Json* object(const char* name);

  Fields& text(const char* name, std::string& out);
  Fields& boolean(const char* name, bool& out);
  Fields& integer(const char* name, int64_t least, int64_t most, int32_t& out);
  Fields& number(const char* name, double least, double most, float& out);

  Fields& fail(std::string_view name, std::string_view message);
  /// Keeps `status` when it is the first failure.
  Fields& keep(base::Status status);
  bool failed() const { return failure_.has_value(); }
  base::Status status() const;
  std::string path_of(std::string_view name) const { return path_ + std::string(name); }

 private:
  const Json& object_;
  std::string path_;
  std::optional<base::Error> failure_;
};

/// Whether `value` is a whole number in [least, most]; 3.0 counts.
std::optional<int64_t> whole_number(const Json& value, int64_t least, int64_t most);

}  // namespace kvtide::server
