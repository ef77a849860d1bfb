// Where llama.cpp's log lines go.
//
// llama.cpp has one log sink per process. Its common library logs generated text and grammars of requests on some warnings, so that
// library's own log is switched off altogether, and lines written while a MuteLog lives on the thread are kept from the sink.
//
// Threading: thread-safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/llamacpp/llamacpp.h"

namespace kvtide::engine {

/// Routes log lines of at least `level` to `sink`; null drops them.
void route_log(std::function<void(LogLevel, std::string_view)> sink, LogLevel level);

/// While it lives, this thread's error lines are collected here; with `mute` they do not reach the sink.
class LogCapture {
 public:
  explicit LogCapture(bool mute);
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// The last error line, or `otherwise` when there was none.
  std::string last_error(std::string_view otherwise) const;

 private:
  friend void take_log_line(LogLevel level, std::string_view text);
  LogCapture* outer_;
  bool mute_;
  std::string last_error_;
};

}  // namespace kvtide::engine
