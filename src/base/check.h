// Programmer errors: print where and what, then abort. Never used on outside input.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvtide::base {

[[noreturn]] inline void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace kvtide::base

#define KV_CHECK(condition)                                                         \
  do {                                                                              \
    if (!(condition)) ::kvtide::base::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)

#ifdef NDEBUG
#define KV_DCHECK(condition) \
  do {                       \
  } while (false)
#else
#define KV_DCHECK(condition) KV_CHECK(condition)
#endif
