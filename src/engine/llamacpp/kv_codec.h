// Cuts llama.cpp's serialised sequences into blocks, and puts blocks together again.
//
// llama.cpp writes one sequence as: magic, sequence id, number of streams, and per stream a cell count; for the one stream that has
// cells follow position and owner of each cell, and for every layer the keys, then for every layer the values, as rows of cells or
// transposed (one row of all cells per value element). A *block payload* is the same bytes of block_tokens cells, tensor by tensor, with no
// headers, so its size is constant and it can be hashed and stored as it is.
//
// Not responsible for: whether the bytes are right. Sizes, types, positions and headers are checked; contents are the caller's checksum.
//
// Threading: value types and const methods, thread-compatible.
// Errors: kCorrupt for a blob that is not of this form. Nothing is read or written out of bounds, whatever the blob says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/status.h"

namespace kvtide::engine {

/// Keys or values of one layer.
struct KvTensor {
  int32_t type = 0;         // ggml type
  uint32_t rows = 1;        // above 1 only when transposed: one row per value element
  uint64_t width = 0;       // contiguous bytes of one cell in one row
  bool transposed = false;

  uint64_t cell_bytes() const { return width * rows; }
  uint64_t header_bytes() const { return 12; }  // type + row size, or type + element size + rows
  friend bool operator==(const KvTensor&, const KvTensor&) = default;
};

/// What a context's serialised form looks like; constant over the life of a context.
struct KvGeometry {
  uint32_t magic = 0;
  uint32_t streams = 0;
  uint32_t layers = 0;
  bool v_transposed = false;
  std::vector<KvTensor> tensors;  // keys of every layer, then values of every layer that has them

  uint64_t cell_bytes() const;
  /// Digest of all that a payload depends on: layers, types, sizes, transposition; not the streams.
  base::Digest digest() const;
  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

/// Reads the geometry off the blob of a sequence with at least one cell.
base::Result<KvGeometry> learn_geometry(std::span<const std::byte> blob);

/// A checked blob: which cell holds which position. A view; must not outlive the blob's bytes.
struct KvRun {
  struct Piece {
    int32_t pos;     // first position
    int32_t cell;    // the cell in the blob that holds it
    int32_t cells;   // following positions that lie in following cells
  };
  std::span<const std::byte> blob;
  int32_t begin = 0;
  int32_t cells = 0;
  size_t data_offset = 0;      // of the first tensor's header
  std::vector<Piece> pieces;   // ascending positions, covering [begin, begin + cells)
};

class KvCodec {
 public:
  /// REQUIRES: block_tokens > 0.
  KvCodec(KvGeometry geometry, int32_t block_tokens);

  const KvGeometry& geometry() const { return geometry_; }
  int32_t block_tokens() const { return block_tokens_; }
  size_t block_bytes() const { return cell_bytes_ * static_cast<size_t>(block_tokens_); }
  /// Bytes of the blob of `cells` cells.
  size_t blob_bytes(int32_t cells) const;

  /// Checks a blob that must hold exactly positions [begin, end), in cells of any order.
  base::Result<KvRun> open(std::span<const std::byte> blob, int32_t begin, int32_t end) const;

  /// Copies the blocks from position `first_pos` of `run` on into payloads.
  /// REQUIRES: the run holds them; every payload of block_bytes().
  void cut(const KvRun& run, int32_t first_pos, std::span<const std::span<std::byte>> out) const;

  /// Writes the blob of sequence `seq` in stream `stream`: the cells of `prefix` (may be null), then `blocks` from position `first_pos` on.
  /// REQUIRES: prefix null or ending at first_pos; every block of block_bytes(); out.size() == blob_bytes(all cells); stream < streams.
  void assemble(int32_t seq, uint32_t stream, const KvRun* prefix, int32_t first_pos, std::span<const std::span<const std::byte>> blocks,
                std::span<std::byte> out) const;

 private:
  size_t tensor_offset(size_t tensor, int32_t cells) const;  // of its data, from the first tensor's header
  size_t write_head(int32_t seq, uint32_t stream, const KvRun* prefix, int32_t first_pos, int32_t cells, std::span<std::byte> out) const;

  KvGeometry geometry_;
  int32_t block_tokens_;
  size_t cell_bytes_;
  std::vector<size_t> headers_through_;  // header bytes of tensors [0, i]
  std::vector<size_t> cells_before_;     // bytes per cell of tensors [0, i)
};

}  // namespace kvtide::engine
