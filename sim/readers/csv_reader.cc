#include "sim/readers/csv_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

namespace kvtide::sim {

base::Result<CsvReader> CsvReader::open(const std::filesystem::path& file, std::span<const std::string_view> columns) {
  auto lines = LineReader::open(file);
  if (!lines) return tl::make_unexpected(lines.error());
  CsvReader reader(std::move(*lines), columns);
  std::string_view line;
  if (!reader.lines_.next(line)) {
    if (!reader.lines_.status()) return tl::make_unexpected(reader.lines_.status().error());
    return reader.lines_.corrupt("the file is empty");
  }
  reader.split(line);
  reader.width_ = reader.fields_.size();
  for (const std::string_view column : columns) {
    const auto found = std::find(reader.fields_.begin(), reader.fields_.end(), column);
    if (found == reader.fields_.end()) return reader.lines_.corrupt("no column '" + std::string(column) + "'");
    reader.places_.push_back(static_cast<size_t>(found - reader.fields_.begin()));
  }
  return reader;
}

void CsvReader::split(std::string_view line) {
  fields_.clear();
  for (;;) {
    const size_t comma = line.find(',');
    fields_.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return;
    line.remove_prefix(comma + 1);
  }
}

bool CsvReader::next() {
  std::string_view line;
  if (!status_) return false;
  if (!lines_.next(line)) {
    status_ = lines_.status();
    return false;
  }
  split(line);
  if (fields_.size() == width_ && line.find('"') == std::string_view::npos) return true;
  status_ = lines_.corrupt("expected " + std::to_string(width_) + " fields without quotes, got " + std::to_string(fields_.size()));
  return false;
}

bool CsvReader::fail(size_t column, std::string_view what) {
  if (status_) status_ = lines_.corrupt("field '" + std::string(columns_[column]) + "': " + std::string(what));
  return false;
}

bool CsvReader::read_int(size_t column, int64_t& value, int64_t least, int64_t most) {
  const std::string_view text = field(column);
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return true;
  return fail(column, "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

bool CsvReader::read_number(size_t column, double& value, double least, double most) {
  const std::string_view text = field(column);
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value >= least && value <= most) return true;
  return fail(column, "expected a number from " + std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace kvtide::sim
