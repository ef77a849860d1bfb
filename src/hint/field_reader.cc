#include "hint/field_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "hint/utf8.h"

namespace kvtide::hint {
namespace {

using nlohmann::json;

constexpr int64_t kCountMax = int64_t{1} << 53;

}  // namespace

void add_problem(std::vector<Problem>& problems, std::string field, std::string message) {
  if (problems.size() < kProblemsMax) problems.push_back({std::move(field), std::move(message)});
}

Field<std::string> checked_id(std::string_view value, size_t bytes_max, std::string_view field, std::vector<Problem>& problems) {
  if (value.empty()) return {};
  if (value.size() > bytes_max) {
    add_problem(problems, std::string(field), "longer than " + std::to_string(bytes_max) + " bytes");
    return {.value = {}, .bad = true};
  }
  if (!is_utf8(value)) {
    add_problem(problems, std::string(field), "not valid UTF-8");
    return {.value = {}, .bad = true};
  }
  return {.value = std::string(value)};
}

std::optional<FieldReader> FieldReader::open(const json& value, std::string path, std::vector<Problem>& problems) {
  if (!value.is_object()) {
    add_problem(problems, std::move(path), "must be an object");
    return std::nullopt;
  }
  return FieldReader(value, std::move(path), problems);
}

const json* FieldReader::find(const char* name) const {
  const auto found = object_->find(name);
  if (found == object_->end() || found->is_null()) return nullptr;
  return &*found;
}

std::string FieldReader::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

void FieldReader::problem(std::string_view name, std::string message) { add_problem(*problems_, path_of(name), std::move(message)); }

std::optional<FieldReader> FieldReader::child(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return open(*value, path_of(name), *problems_);
}

const json* FieldReader::list(const char* name) {
  const json* value = find(name);
  if (value == nullptr || value->is_array()) return value;
  problem(name, "must be a list");
  return nullptr;
}

Field<bool> FieldReader::flag(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return {};
  if (const bool* flag = value->get_ptr<const json::boolean_t*>()) return {.value = *flag};
  problem(name, "must be true or false");
  return {.value = {}, .bad = true};
}

Field<std::string_view> FieldReader::word(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return {};
  if (const std::string* text = value->get_ptr<const json::string_t*>()) return {.value = *text};
  problem(name, "must be a string");
  return {.value = {}, .bad = true};
}

Field<std::string> FieldReader::id(const char* name, size_t bytes_max) {
  const Field<std::string_view> text = word(name);
  if (!text.value) return {.value = {}, .bad = text.bad};
  return checked_id(*text.value, bytes_max, path_of(name), *problems_);
}

Field<int64_t> FieldReader::count(const char* name, int64_t lowest) {
  const json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_number_integer()) {
    problem(name, "must be a whole number");
    return {.value = {}, .bad = true};
  }
  int64_t number = kCountMax;
  if (const uint64_t* big = value->get_ptr<const json::number_unsigned_t*>()) {
    number = static_cast<int64_t>(std::min<uint64_t>(*big, kCountMax));
  } else if (const int64_t* any = value->get_ptr<const json::number_integer_t*>()) {
    number = std::min(*any, kCountMax);
  }
  if (number < lowest) {
    problem(name, "must be " + std::to_string(lowest) + " or more");
    return {.value = {}, .bad = true};
  }
  return {.value = number};
}

Field<base::DurationNs> FieldReader::duration(const char* name, base::DurationNs unit_ns, base::DurationNs longest_ns) {
  const json* value = find(name);
  if (value == nullptr) return {};
  double units = 0;
  if (const double* real = value->get_ptr<const json::number_float_t*>()) {
    units = *real;
  } else if (const uint64_t* big = value->get_ptr<const json::number_unsigned_t*>()) {
    units = static_cast<double>(*big);
  } else if (const int64_t* whole = value->get_ptr<const json::number_integer_t*>()) {
    units = static_cast<double>(*whole);
  } else {
    units = std::nan("");
  }
  if (std::isnan(units)) {
    problem(name, "must be a number");
    return {.value = {}, .bad = true};
  }
  const base::DurationNs longest_units = longest_ns / unit_ns;
  if (units < 0 || units > static_cast<double>(longest_units)) {
    problem(name, "outside 0.." + std::to_string(longest_units) + ", clipped");
    return {.value = units < 0 ? 0 : longest_ns};
  }
  return {.value = std::min(longest_ns, static_cast<base::DurationNs>(std::llround(units * static_cast<double>(unit_ns))))};
}

Field<Range> FieldReader::range(const char* start, const char* end) {
  const Field<int64_t> from = count(start, 0);
  const Field<int64_t> to = count(end, 0);
  if (from.bad || to.bad) return {.value = {}, .bad = true};
  if (to.value && from.value.value_or(0) >= *to.value) {
    problem(end, "must be greater than the start: the range is empty");
    return {.value = {}, .bad = true};
  }
  return {.value = Range{from.value, to.value}};
}

Who read_identity(FieldReader& in, const char* session, std::initializer_list<const char*> parents) {
  Who who;
  Field<std::string> id = in.id(session, kIdBytesMax);
  who.bad_session = id.bad;
  if (id.value) who.identity.session_id = std::move(*id.value);
  for (const char* name : parents) {
    Field<std::string> parent = in.id(name, kIdBytesMax);
    if (!parent.value || !who.identity.parent_id.empty()) continue;
    if (!id.value && !id.bad) {
      in.problem(name, std::string("ignored without ") + session);
      break;
    }
    if (who.identity.session_id.empty()) break;
    who.identity.parent_id = std::move(*parent.value);
  }
  if (who.identity.parent_id == who.identity.session_id) who.identity.parent_id.clear();
  return who;
}

}  // namespace kvtide::hint
