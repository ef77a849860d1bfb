// Operating errors as values: Status and Result<T>.
//
// Three kinds of trouble are kept apart: programmer errors abort (base/check.h), operating errors are a Status, and outcomes that are
// not errors ("not found", "pending", "full") are domain enums. No exception leaves a module.
//
// Threading: value types, thread-compatible.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace kvtide::base {

enum class Code {
  kInvalidArgument,    // the caller's input is wrong; the message names the field or flag
  kNotFound,           // a named thing does not exist
  kResourceExhausted,  // a limit or budget is reached; trying later may work
  kUnavailable,        // a peer, file or device cannot be reached now
  kUnsupported,        // this build, model or engine cannot do it
  kCorrupt,            // bytes are not what was stored
  kCancelled,          // the caller gave up
  kDeadlineExceeded,   // a wait ended without an answer
  kInternal,           // none of the above; a bug or a third-party failure
};

/// The name of `code` in snake case, e.g. "invalid_argument".
std::string_view code_name(Code code);

struct [[nodiscard]] Error {
  Code code;
  std::string message;

  /// The same error with "`context`: " in front of its message.
  Error with(std::string_view context) && {
    message = std::string(context) + ": " + message;
    return std::move(*this);
  }
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> error(Code code, std::string message) {
  return tl::make_unexpected(Error{code, std::move(message)});
}

}  // namespace kvtide::base
