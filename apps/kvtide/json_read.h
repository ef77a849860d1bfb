// Tolerant readers for answers of a server: a missing or oddly typed field is a default, never an exception.
//
// Threading: free functions, thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvtide::app {

using Json = nlohmann::json;

inline const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}
inline int64_t int_of(const Json& object, const char* key, int64_t otherwise = 0) {
  const Json& v = member(object, key);
  return v.is_number() ? v.get<int64_t>() : otherwise;
}
inline double number_of(const Json& object, const char* key, double otherwise = 0) {
  const Json& v = member(object, key);
  return v.is_number() ? v.get<double>() : otherwise;
}
inline std::string text_of(const Json& object, const char* key) {
  const Json& v = member(object, key);
  return v.is_string() ? v.get<std::string>() : std::string();
}
/// `object[key]` when it is an array, or `object` itself when that is one, else an empty array.
inline const Json& list_of(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  if (object.is_array()) return object;
  const Json& v = member(object, key);
  return v.is_array() ? v : kEmpty;
}
const Json& list_of(Json&& object, const char* key) = delete;  // the view would outlive it

}  // namespace kvtide::app
