#include "engine/llamacpp/llamacpp_log.h"

#include <mutex>

#include "llama.h"
#include "log.h"

namespace kvtide::engine {
namespace {

struct Sink {
  std::mutex mutex;
  std::function<void(LogLevel, std::string_view)> write;
  LogLevel level = LogLevel::kWarning;
};

Sink& sink() {
  static Sink* one = new Sink;  // never destroyed: llama.cpp's threads may log while the process ends
  return *one;
}

thread_local LogCapture* capture = nullptr;
thread_local LogLevel line_level = LogLevel::kInfo;
thread_local std::string line;

}  // namespace

void take_log_line(LogLevel level, std::string_view text) {
  if (capture != nullptr) {
    if (level == LogLevel::kError) capture->last_error_ = text;
    if (capture->mute_) return;
  }
  std::lock_guard lock(sink().mutex);
  if (sink().write && level >= sink().level) sink().write(level, text);
}

namespace {

/// llama.cpp passes pieces of lines; a piece of level CONT goes on with the level of the one before.
void on_llama_log(ggml_log_level level, const char* text, void* /*user*/) {
  if (level == GGML_LOG_LEVEL_ERROR) {
    line_level = LogLevel::kError;
  } else if (level == GGML_LOG_LEVEL_WARN) {
    line_level = LogLevel::kWarning;
  } else if (level != GGML_LOG_LEVEL_CONT) {
    line_level = LogLevel::kInfo;
  }
  for (const char c : std::string_view(text)) {
    if (c != '\n') {
      line += c;
      continue;
    }
    if (!line.empty()) take_log_line(line_level, line);
    line.clear();
  }
}

}  // namespace

void route_log(std::function<void(LogLevel, std::string_view)> new_sink, LogLevel level) {
  {
    std::lock_guard lock(sink().mutex);
    sink().write = std::move(new_sink);
    sink().level = level;
  }
  llama_log_set(on_llama_log, nullptr);
  common_log_set_verbosity_thold(-1);
}

LogCapture::LogCapture(bool mute) : outer_(capture), mute_(mute) { capture = this; }

LogCapture::~LogCapture() { capture = outer_; }

std::string LogCapture::last_error(std::string_view otherwise) const {
  return last_error_.empty() ? std::string(otherwise) : last_error_;
}

}  // namespace kvtide::engine
