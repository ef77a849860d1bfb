#include "base/status.h"

namespace kvtide::base {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kNotFound: return "not_found";
    case Code::kResourceExhausted: return "resource_exhausted";
    case Code::kUnavailable: return "unavailable";
    case Code::kUnsupported: return "unsupported";
    case Code::kCorrupt: return "corrupt";
    case Code::kCancelled: return "cancelled";
    case Code::kDeadlineExceeded: return "deadline_exceeded";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

}  // namespace kvtide::base
