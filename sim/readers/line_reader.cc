#include "sim/readers/line_reader.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

namespace kvtide::sim {
namespace {

namespace fs = std::filesystem;
using base::Code;

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr std::string_view kZstdMagic("\x28\xb5\x2f\xfd", 4);

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

struct LineReader::Source {
  std::ifstream file;
  std::unique_ptr<ZSTD_DStream, FreeStream> stream;  // null: the file is plain
  std::vector<char> packed;
  ZSTD_inBuffer input{nullptr, 0, 0};
  size_t frame_left = 0;  // not 0: inside a frame
};

LineReader::LineReader(std::string name) : name_(std::move(name)) {}
LineReader::LineReader(LineReader&&) noexcept = default;
LineReader& LineReader::operator=(LineReader&&) noexcept = default;
LineReader::~LineReader() = default;

base::Result<LineReader> LineReader::open(const fs::path& file) {
  std::error_code failed;
  if (!fs::exists(file, failed)) return base::error(Code::kNotFound, file.string() + ": no such file");
  if (fs::is_directory(file, failed)) return base::error(Code::kUnavailable, file.string() + " is a folder");
  LineReader reader(file.string());
  reader.source_ = std::make_unique<Source>();
  Source& source = *reader.source_;
  source.file.open(file, std::ios::binary);
  if (!source.file) return base::error(Code::kUnavailable, "cannot read " + file.string());
  std::array<char, kZstdMagic.size()> head{};
  source.file.read(head.data(), head.size());
  const std::string_view start(head.data(), static_cast<size_t>(source.file.gcount()));
  source.file.clear();
  source.file.seekg(0);
  if (start == kZstdMagic) {
    source.stream.reset(ZSTD_createDStream());
    if (!source.stream) return base::error(Code::kResourceExhausted, "no memory to read " + file.string());
    source.packed.resize(ZSTD_DStreamInSize());
  }
  return reader;
}

LineReader LineReader::over(std::string_view text, std::string name) {
  LineReader reader(std::move(name));
  reader.view_ = text;
  reader.ended_ = true;
  return reader;
}

tl::unexpected<base::Error> LineReader::corrupt(std::string_view message) const {
  return base::error(Code::kCorrupt, name_ + ", line " + std::to_string(number_) + ": " + std::string(message));
}

void LineReader::fail(Code code, std::string_view message) {
  status_ = base::error(code, name_ + ", after line " + std::to_string(number_) + ": " + std::string(message));
}

bool LineReader::next(std::string_view& line) {
  while (take_line(line)) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!is_blank(line)) return true;
  }
  return false;
}

bool LineReader::take_line(std::string_view& line) {
  while (status_) {
    const size_t end = view_.find('\n', scanned_);
    if (end == std::string_view::npos && !ended_) {
      scanned_ = view_.size();
      if (scanned_ - begin_ > kLineBytesMax)
        fail(Code::kCorrupt, "a line over " + std::to_string(kLineBytesMax) + " bytes");
      else
        fill();
      continue;
    }
    if (end == std::string_view::npos && begin_ == view_.size()) return false;
    const size_t stop = std::min(end, view_.size());
    line = view_.substr(begin_, stop - begin_);
    begin_ = scanned_ = std::min(stop + 1, view_.size());
    ++number_;
    if (line.size() <= kLineBytesMax) return true;
    fail(Code::kCorrupt, "a line over " + std::to_string(kLineBytesMax) + " bytes");
  }
  return false;
}

/// Moves the open line to the front and reads about a chunk behind it.
void LineReader::fill() {
  Source& source = *source_;
  buffer_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = 0;
  const size_t used = buffer_.size();
  buffer_.resize(used + kChunkBytes);
  size_t got = 0;
  if (!source.stream) {
    source.file.read(buffer_.data() + used, kChunkBytes);
    got = static_cast<size_t>(source.file.gcount());
    ended_ = got == 0;
  } else {
    ZSTD_outBuffer output{buffer_.data() + used, kChunkBytes, 0};
    while (output.pos < output.size && !ended_ && status_) {
      if (source.input.pos == source.input.size && source.file) {
        source.file.read(source.packed.data(), static_cast<std::streamsize>(source.packed.size()));
        source.input = {source.packed.data(), static_cast<size_t>(source.file.gcount()), 0};
      }
      const bool no_input = source.input.pos == source.input.size;
      if (no_input && source.frame_left == 0) {
        ended_ = true;
        break;
      }
      const size_t before = output.pos;
      const size_t left = ZSTD_decompressStream(source.stream.get(), &output, &source.input);
      if (ZSTD_isError(left))
        fail(Code::kCorrupt, ZSTD_getErrorName(left));
      else if (no_input && output.pos == before && left != 0)
        fail(Code::kCorrupt, "the compressed file is cut short");
      source.frame_left = ZSTD_isError(left) ? 0 : left;
    }
    got = output.pos;
  }
  if (source.file.bad()) fail(Code::kUnavailable, "reading failed");
  buffer_.resize(used + got);
  view_ = buffer_;
}

}  // namespace kvtide::sim
