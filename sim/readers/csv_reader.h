// Rows of a comma-separated file without quotes, by the names of its columns.
//
// Threading: thread-compatible.
// Errors: as LineReader, and kCorrupt for a missing column, a row of another length, or a field out of range; the first one sticks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sim/readers/line_reader.h"

namespace kvtide::sim {

class CsvReader {
 public:
  /// The columns are then known by their place in `columns`. The names must outlive the reader.
  static base::Result<CsvReader> open(const std::filesystem::path& file, std::span<const std::string_view> columns);

  /// The next row; false at the end or after an error.
  bool next();
  std::string_view field(size_t column) const { return fields_[places_[column]]; }
  bool read_int(size_t column, int64_t& value, int64_t least, int64_t most);
  bool read_number(size_t column, double& value, double least, double most);
  /// Makes `what` about `column` the error, unless there is one. Returns false.
  bool fail(size_t column, std::string_view what);
  const base::Status& status() const { return status_; }

 private:
  explicit CsvReader(LineReader lines, std::span<const std::string_view> columns) : lines_(std::move(lines)), columns_(columns) {}
  void split(std::string_view line);

  LineReader lines_;
  std::span<const std::string_view> columns_;
  std::vector<size_t> places_;            // of each column in the file
  std::vector<std::string_view> fields_;  // of the current row
  size_t width_ = 0;
  base::Status status_;
};

}  // namespace kvtide::sim
