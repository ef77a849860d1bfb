// Reads the known fields of one JSON object from outside.
//
// A field is absent (also when null), bad (a Problem says why) or good. Whether a bad field spoils what it belongs to is for the
// caller: where ignoring it would make an action larger, the action goes too. Problems name fields by path and never quote values.
// Nothing throws, whatever the JSON. The reader refers to the object, and to the list of problems, and must not outlive them.
//
// Threading: thread-compatible.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "hint/hint.h"

namespace kvtide::hint {

template <typename T>
struct Field {
  std::optional<T> value;
  bool bad = false;
};

struct Range {
  std::optional<int64_t> start;
  std::optional<int64_t> end;

  bool given() const { return start || end; }
};

/// Adds a problem unless kProblemsMax are known already.
void add_problem(std::vector<Problem>& problems, std::string field, std::string message);

/// `value` as an id: non-empty, at most `bytes_max` bytes, UTF-8. Empty text counts as absent.
Field<std::string> checked_id(std::string_view value, size_t bytes_max, std::string_view field, std::vector<Problem>& problems);

class FieldReader {
 public:
  /// Nothing, and a Problem, when `value` is no object. `path` names it in problems; empty for a message's own top.
  static std::optional<FieldReader> open(const nlohmann::json& value, std::string path, std::vector<Problem>& problems);

  bool has(const char* name) const { return find(name) != nullptr; }
  /// The value; null when absent or JSON null.
  const nlohmann::json* find(const char* name) const;
  std::string path_of(std::string_view name) const;
  void problem(std::string_view name, std::string message);

  std::optional<FieldReader> child(const char* name);
  /// The list, or null; a Problem when it is something else.
  const nlohmann::json* list(const char* name);
  Field<bool> flag(const char* name);
  /// Text for a comparison: unbounded and unchecked.
  Field<std::string_view> word(const char* name);
  Field<std::string> id(const char* name, size_t bytes_max);
  /// A whole number of `lowest` or more. Numbers above any prompt's size are lowered to 2^53, which means the same here.
  Field<int64_t> count(const char* name, int64_t lowest);
  /// A number of units of `unit_ns`, clipped with a Problem to [0, longest_ns].
  Field<base::DurationNs> duration(const char* name, base::DurationNs unit_ns, base::DurationNs longest_ns);
  /// A half-open range, either end optional; bad when an end is, or when it is empty.
  Field<Range> range(const char* start, const char* end);

 private:
  FieldReader(const nlohmann::json& object, std::string path, std::vector<Problem>& problems)
      : object_(&object), path_(std::move(path)), problems_(&problems) {}

  const nlohmann::json* object_;
  std::string path_;
  std::vector<Problem>* problems_;
};

/// Session and parent as read; a session that names itself as parent is a root.
struct Who {
  Identity identity;
  bool bad_session = false;  // an id was given and cannot be used
};

/// The parent is the first usable of `parents`. A parent without a session is a Problem.
Who read_identity(FieldReader& in, const char* session, std::initializer_list<const char*> parents);

inline constexpr base::DurationNs kTtlDefaultNs = 300 * base::kSecond;
inline constexpr base::DurationNs kTtlMaxNs = 3600 * base::kSecond;

}  // namespace kvtide::hint
