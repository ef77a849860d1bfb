// The layout is spelled out once, in Reader/Writer order, and every offset is derived from the geometry, so that cutting and assembling cannot
// drift apart. The adapter checks at load that a real blob survives open + cut + assemble byte for byte.
#include "engine/llamacpp/kv_codec.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;

constexpr size_t kFixedHead = 12;  // magic, sequence id, streams
constexpr size_t kMetaBytes = 12;  // position, owner count, owner
constexpr size_t kDataHead = 8;    // v_trans, layers
constexpr uint32_t kStreamsMax = 4096;
constexpr uint32_t kLayersMax = 65536;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  bool read(T& out) {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(&out, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }
  /// Steps over count * size bytes, if that many are left.
  bool skip(uint64_t count, uint64_t size) {
    if (size != 0 && count > remaining() / size) return false;
    at_ += static_cast<size_t>(count * size);
    return true;
  }
  size_t remaining() const { return bytes_.size() - at_; }
  size_t at() const { return at_; }
  void cut_tail(size_t bytes) { bytes_ = bytes_.first(bytes_.size() - bytes); }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void write(T value) {
    std::memcpy(bytes_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  size_t at() const { return at_; }

 private:
  std::span<std::byte> bytes_;
  size_t at_ = 0;
};

tl::unexpected<base::Error> corrupt(const char* what) { return error(Code::kCorrupt, std::string("sequence state: ") + what); }

struct Head {
  uint32_t magic = 0;
  uint32_t streams = 0;
  uint32_t stream = 0;  // the one with cells
  uint32_t cells = 0;
};

/// Reads up to the first cell's meta, and cuts the empty streams' counts off the tail.
Result<Head> read_head(Reader& reader) {
  Head head;
  int32_t seq = 0;
  if (!reader.read(head.magic) || !reader.read(seq) || !reader.read(head.streams)) return corrupt("too short for its header");
  if (head.streams == 0 || head.streams > kStreamsMax) return corrupt("implausible number of streams");
  while (head.stream < head.streams) {
    if (!reader.read(head.cells)) return corrupt("too short for its streams");
    if (head.cells != 0) break;
    ++head.stream;
  }
  if (head.cells == 0) return corrupt("no cells");
  const size_t tail = sizeof(uint32_t) * (head.streams - head.stream - 1);
  if (reader.remaining() < tail) return corrupt("too short for its streams");
  reader.cut_tail(tail);
  return head;
}

struct Rows {
  uint32_t rows;
  size_t from_stride;
  size_t to_stride;
};

/// `bytes` of each row. Rows of transposed values are a few cache lines long, and there are thousands: a constant size is copied in line.
void copy_rows(const std::byte* from, std::byte* to, size_t bytes, const Rows& rows) {
  if (bytes == 128) {
    for (uint32_t row = 0; row < rows.rows; ++row, from += rows.from_stride, to += rows.to_stride) std::memcpy(to, from, 128);
    return;
  }
  for (uint32_t row = 0; row < rows.rows; ++row, from += rows.from_stride, to += rows.to_stride) std::memcpy(to, from, bytes);
}

/// One tensor's header, with its data stepped over.
bool read_tensor(Reader& reader, bool transposed, uint32_t cells, KvTensor& tensor) {
  tensor.transposed = transposed;
  if (!reader.read(tensor.type)) return false;
  if (!transposed) {
    if (!reader.read(tensor.width)) return false;
    tensor.rows = 1;
  } else {
    uint32_t element = 0;
    if (!reader.read(element) || !reader.read(tensor.rows)) return false;
    tensor.width = element;
  }
  if (tensor.width == 0 || tensor.rows == 0) return false;
  if (tensor.width > reader.remaining() / tensor.rows) return false;
  return reader.skip(cells, tensor.width * tensor.rows);
}

}  // namespace

uint64_t KvGeometry::cell_bytes() const {
  uint64_t total = 0;
  for (const KvTensor& tensor : tensors) total += tensor.cell_bytes();
  return total;
}

base::Digest KvGeometry::digest() const {
  base::Sha256 hash;
  const auto add = [&hash](uint64_t value) { hash.update(std::as_bytes(std::span(&value, 1))); };
  add(layers);
  add(v_transposed ? 1 : 0);
  add(tensors.size());
  for (const KvTensor& tensor : tensors) {
    add(static_cast<uint64_t>(static_cast<int64_t>(tensor.type)));
    add(tensor.rows);
    add(tensor.width);
  }
  return hash.digest();
}

Result<KvGeometry> learn_geometry(std::span<const std::byte> blob) {
  Reader reader(blob);
  const auto head = read_head(reader);
  if (!head) return tl::make_unexpected(head.error());
  if (!reader.skip(head->cells, kMetaBytes)) return corrupt("too short for its cells");
  KvGeometry geometry;
  geometry.magic = head->magic;
  geometry.streams = head->streams;
  uint32_t v_trans = 0;
  if (!reader.read(v_trans) || !reader.read(geometry.layers)) return corrupt("too short for its data");
  if (v_trans > 1 || geometry.layers == 0 || geometry.layers > kLayersMax) return corrupt("implausible layers");
  geometry.v_transposed = v_trans == 1;
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    KvTensor tensor;
    if (!read_tensor(reader, false, head->cells, tensor)) return corrupt("keys do not fit");
    geometry.tensors.push_back(tensor);
  }
  while (reader.remaining() != 0) {  // some models keep no values of some layers
    KvTensor tensor;
    if (geometry.tensors.size() == size_t{2} * geometry.layers) return corrupt("bytes after the last layer");
    if (!read_tensor(reader, geometry.v_transposed, head->cells, tensor)) return corrupt("values do not fit");
    geometry.tensors.push_back(tensor);
  }
  return geometry;
}

KvCodec::KvCodec(KvGeometry geometry, int32_t block_tokens)
    : geometry_(std::move(geometry)), block_tokens_(block_tokens), cell_bytes_(geometry_.cell_bytes()) {
  KV_CHECK(block_tokens > 0);
  size_t headers = 0;
  size_t cells = 0;
  for (const KvTensor& tensor : geometry_.tensors) {
    headers += tensor.header_bytes();
    headers_through_.push_back(headers);
    cells_before_.push_back(cells);
    cells += tensor.cell_bytes();
  }
}

size_t KvCodec::blob_bytes(int32_t cells) const {
  const size_t empty = kFixedHead + sizeof(uint32_t) * geometry_.streams;
  if (cells == 0) return empty;
  const size_t headers = headers_through_.empty() ? 0 : headers_through_.back();
  return empty + kDataHead + headers + static_cast<size_t>(cells) * (kMetaBytes + cell_bytes_);
}

size_t KvCodec::tensor_offset(size_t tensor, int32_t cells) const {
  return headers_through_[tensor] + cells_before_[tensor] * static_cast<size_t>(cells);
}

Result<KvRun> KvCodec::open(std::span<const std::byte> blob, int32_t begin, int32_t end) const {
  KV_CHECK(0 <= begin && begin < end);
  const int32_t cells = end - begin;
  if (blob.size() != blob_bytes(cells)) return corrupt("not of the expected size");
  Reader reader(blob);
  const auto head = read_head(reader);
  if (!head) return tl::make_unexpected(head.error());
  if (head->magic != geometry_.magic || head->streams != geometry_.streams) return corrupt("another format");
  if (head->cells != static_cast<uint32_t>(cells)) return corrupt("not the expected number of cells");

  std::vector<int32_t> cell_of(static_cast<size_t>(cells), -1);
  for (int32_t cell = 0; cell < cells; ++cell) {
    int32_t pos = 0;
    uint32_t owners = 0;
    int32_t owner = 0;
    if (!reader.read(pos) || !reader.read(owners) || !reader.read(owner)) return corrupt("too short for its cells");
    if (owners != 1 || pos < begin || pos >= end || cell_of[pos - begin] >= 0) return corrupt("unexpected positions");
    cell_of[pos - begin] = cell;
  }
  uint32_t v_trans = 0;
  uint32_t layers = 0;
  if (!reader.read(v_trans) || !reader.read(layers)) return corrupt("too short for its data");
  if (v_trans != (geometry_.v_transposed ? 1U : 0U) || layers != geometry_.layers) return corrupt("another geometry");
  KvRun run{.blob = blob, .begin = begin, .cells = cells, .data_offset = reader.at(), .pieces = {}};
  for (const KvTensor& expected : geometry_.tensors) {
    KvTensor tensor;
    if (!read_tensor(reader, expected.transposed, head->cells, tensor) || tensor != expected) return corrupt("another geometry");
  }
  for (int32_t i = 0; i < cells; ++i) {
    if (!run.pieces.empty()) {
      KvRun::Piece& last = run.pieces.back();
      if (last.cell + last.cells == cell_of[i]) {
        ++last.cells;
        continue;
      }
    }
    run.pieces.push_back({begin + i, cell_of[i], 1});
  }
  return run;
}

void KvCodec::cut(const KvRun& run, int32_t first_pos, std::span<const std::span<std::byte>> out) const {
  for (const auto& block : out) KV_CHECK(block.size() == block_bytes());
  const int32_t end = first_pos + block_tokens_ * static_cast<int32_t>(out.size());
  KV_CHECK(first_pos >= run.begin && end <= run.begin + run.cells);
  struct Part {
    size_t block;   // of `out`
    int32_t at;     // first token in the block
    int32_t cell;   // of the run
    int32_t cells;
  };
  std::vector<Part> parts;
  for (const KvRun::Piece& piece : run.pieces) {
    const int32_t to = std::min(piece.pos + piece.cells, end);
    for (int32_t pos = std::max(piece.pos, first_pos); pos < to;) {
      const int32_t at = (pos - first_pos) % block_tokens_;
      const int32_t cells = std::min(block_tokens_ - at, to - pos);
      parts.push_back({static_cast<size_t>((pos - first_pos) / block_tokens_), at, piece.cell + (pos - piece.pos), cells});
      pos += cells;
    }
  }
  // Tensor by tensor, so that one tensor of the run stays in the core's cache while every block takes its share of it.
  for (size_t t = 0; t < geometry_.tensors.size(); ++t) {
    const KvTensor& tensor = geometry_.tensors[t];
    const std::byte* from = run.blob.data() + run.data_offset + tensor_offset(t, run.cells);
    const size_t at = cells_before_[t] * static_cast<size_t>(block_tokens_);
    const Rows rows{.rows = tensor.rows,
                    .from_stride = static_cast<size_t>(run.cells) * tensor.width,
                    .to_stride = static_cast<size_t>(block_tokens_) * tensor.width};
    for (const Part& part : parts) {
      copy_rows(from + static_cast<size_t>(part.cell) * tensor.width, out[part.block].data() + at + static_cast<size_t>(part.at) * tensor.width,
                static_cast<size_t>(part.cells) * tensor.width, rows);
    }
  }
}

size_t KvCodec::write_head(int32_t seq, uint32_t stream, const KvRun* prefix, int32_t first_pos, int32_t cells,
                           std::span<std::byte> out) const {
  Writer writer(out);
  writer.write(geometry_.magic);
  writer.write(seq);
  writer.write(geometry_.streams);
  for (uint32_t s = 0; s < stream; ++s) writer.write(uint32_t{0});
  writer.write(static_cast<uint32_t>(cells));
  const int32_t begin = prefix != nullptr ? prefix->begin : first_pos;
  for (int32_t i = 0; i < cells; ++i) {
    writer.write(begin + i);
    writer.write(uint32_t{1});
    writer.write(seq);
  }
  writer.write(uint32_t{geometry_.v_transposed ? 1U : 0U});
  writer.write(geometry_.layers);
  return writer.at();
}

void KvCodec::assemble(int32_t seq, uint32_t stream, const KvRun* prefix, int32_t first_pos,
                       std::span<const std::span<const std::byte>> blocks, std::span<std::byte> out) const {
  KV_CHECK(prefix == nullptr || prefix->begin + prefix->cells == first_pos);
  KV_CHECK(stream < geometry_.streams);
  for (const auto& block : blocks) KV_CHECK(block.size() == block_bytes());
  const int32_t before = prefix != nullptr ? prefix->cells : 0;
  const int32_t cells = before + static_cast<int32_t>(blocks.size()) * block_tokens_;
  KV_CHECK(cells > 0 && out.size() == blob_bytes(cells));

  const size_t data_offset = write_head(seq, stream, prefix, first_pos, cells, out);
  for (size_t t = 0; t < geometry_.tensors.size(); ++t) {
    const KvTensor& tensor = geometry_.tensors[t];
    std::byte* to = out.data() + data_offset + tensor_offset(t, cells);
    Writer header(std::span(to - tensor.header_bytes(), tensor.header_bytes()));
    header.write(tensor.type);
    if (tensor.transposed) {
      header.write(static_cast<uint32_t>(tensor.width));
      header.write(tensor.rows);
    } else {
      header.write(tensor.width);
    }
    const size_t row_bytes = static_cast<size_t>(block_tokens_) * tensor.width;
    for (uint32_t row = 0; row < tensor.rows; ++row) {
      if (prefix != nullptr) {
        const std::byte* from =
            prefix->blob.data() + prefix->data_offset + tensor_offset(t, before) + size_t{row} * static_cast<size_t>(before) * tensor.width;
        for (const KvRun::Piece& piece : prefix->pieces) {
          std::memcpy(to + static_cast<size_t>(piece.pos - prefix->begin) * tensor.width,
                      from + static_cast<size_t>(piece.cell) * tensor.width, static_cast<size_t>(piece.cells) * tensor.width);
        }
        to += static_cast<size_t>(before) * tensor.width;
      }
      const size_t at = cells_before_[t] * static_cast<size_t>(block_tokens_) + row * row_bytes;
      for (const auto& block : blocks) {
        std::memcpy(to, block.data() + at, row_bytes);
        to += row_bytes;
      }
    }
  }
  Writer tail(out.subspan(out.size() - sizeof(uint32_t) * (geometry_.streams - stream - 1)));
  for (uint32_t s = stream + 1; s < geometry_.streams; ++s) tail.write(uint32_t{0});
}

}  // namespace kvtide::engine
