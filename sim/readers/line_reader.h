// Lines of a text file, plain or Zstandard (told by its first bytes), without the whole of it in memory.
//
// Threading: thread-compatible.
// Errors: kNotFound (no such file), kUnavailable (it cannot be read), kCorrupt (bad compression, or a line over kLineBytesMax).
// Cost: O(bytes); memory is the longest line plus what the compression needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvtide::sim {

inline constexpr size_t kLineBytesMax = size_t{64} << 20;

class LineReader {
 public:
  static base::Result<LineReader> open(const std::filesystem::path& file);
  /// Over `text`, never compressed, which must outlive the reader; `name` is for messages.
  static LineReader over(std::string_view text, std::string name);

  LineReader(LineReader&&) noexcept;
  LineReader& operator=(LineReader&&) noexcept;
  ~LineReader();

  /// The next line that is not blank, without its end; it lives until the next call. False: the end, or an error (see status()).
  bool next(std::string_view& line);
  /// Of the last line, from 1; blank lines count.
  int64_t number() const { return number_; }
  const base::Status& status() const { return status_; }
  /// An error of the last line: "FILE, line N: message".
  tl::unexpected<base::Error> corrupt(std::string_view message) const;

 private:
  struct Source;
  explicit LineReader(std::string name);
  bool take_line(std::string_view& line);
  void fill();
  void fail(base::Code code, std::string_view message);

  std::string name_;
  std::unique_ptr<Source> source_;  // null: everything is in view_
  std::string buffer_;              // what was read and not yet handed out, from begin_ on
  std::string_view view_;           // of buffer_, or of the text of over()
  size_t begin_ = 0;
  size_t scanned_ = 0;  // no line end before it
  bool ended_ = false;  // nothing comes after view_
  int64_t number_ = 0;
  base::Status status_;
};

}  // namespace kvtide::sim
