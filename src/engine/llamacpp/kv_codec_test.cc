#include "engine/llamacpp/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace kvtide::engine {
namespace {

constexpr uint32_t kMagic = 0xaf143cd8;

/// A blob written from the description of llama.cpp's form, independently of the codec. The byte of a cell depends on tensor, row and
/// position only, so that wherever a cell lies in the blob its bytes are known.
struct BlobSpec {
  uint32_t streams = 1;
  uint32_t stream = 0;
  int32_t seq = 0;
  bool v_trans = false;
  uint32_t layers = 2;
  uint64_t key_width = 6;
  uint32_t value_rows = 3;     // when transposed
  uint32_t value_layers = 2;
  std::vector<int32_t> positions;  // in the order of cells
};

uint8_t cell_byte(size_t tensor, size_t row, int32_t pos, size_t byte) {
  return static_cast<uint8_t>(17 * tensor + 31 * row + 7 * static_cast<size_t>(pos) + 3 * byte + 1);
}

class BlobWriter {
 public:
  template <typename T>
  void put(T value) {
    std::array<std::byte, sizeof(T)> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
  void cells(size_t tensor, size_t row, size_t width, const std::vector<int32_t>& positions) {
    for (const int32_t pos : positions) {
      for (size_t b = 0; b < width; ++b) bytes.push_back(std::byte{cell_byte(tensor, row, pos, b)});
    }
  }
  std::vector<std::byte> bytes;
};

std::vector<std::byte> make_blob(const BlobSpec& spec) {
  BlobWriter w;
  w.put(kMagic);
  w.put(spec.seq);
  w.put(spec.streams);
  for (uint32_t s = 0; s < spec.streams; ++s) {
    w.put(s == spec.stream ? static_cast<uint32_t>(spec.positions.size()) : 0U);
    if (s != spec.stream) continue;
    for (const int32_t pos : spec.positions) {
      w.put(pos);
      w.put(uint32_t{1});
      w.put(spec.seq);
    }
    w.put(uint32_t{spec.v_trans});
    w.put(spec.layers);
    for (size_t l = 0; l < spec.layers; ++l) {
      w.put(int32_t{1});
      w.put(spec.key_width);
      w.cells(l, 0, spec.key_width, spec.positions);
    }
    for (size_t l = 0; l < spec.value_layers; ++l) {
      w.put(int32_t{1});
      if (!spec.v_trans) {
        w.put(uint64_t{spec.value_rows} * 2);
        w.cells(spec.layers + l, 0, size_t{spec.value_rows} * 2, spec.positions);
        continue;
      }
      w.put(uint32_t{2});
      w.put(spec.value_rows);
      for (size_t row = 0; row < spec.value_rows; ++row) w.cells(spec.layers + l, row, 2, spec.positions);
    }
  }
  return w.bytes;
}

std::vector<int32_t> run_of(int32_t begin, int32_t end) {
  std::vector<int32_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

class Codec : public testing::TestWithParam<bool> {
 protected:
  BlobSpec spec(std::vector<int32_t> positions) const { return {.v_trans = GetParam(), .positions = std::move(positions)}; }

  KvCodec codec(int32_t block_tokens, BlobSpec of) const {
    of.positions = {0};
    auto geometry = learn_geometry(make_blob(of));
    EXPECT_TRUE(geometry.has_value());
    return KvCodec(*geometry, block_tokens);
  }

  static std::vector<std::byte> block(const KvCodec& codec, const KvRun& run, int32_t first) {
    std::vector<std::byte> out(codec.block_bytes());
    const std::span<std::byte> to(out);
    codec.cut(run, first, {&to, 1});
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(Values, Codec, testing::Bool(), [](const auto& i) { return i.param ? "Transposed" : "Rows"; });

TEST_P(Codec, GeometryIsLearntFromOneBlob) {
  const auto geometry = learn_geometry(make_blob(spec(run_of(0, 5))));
  ASSERT_TRUE(geometry.has_value());
  EXPECT_EQ(geometry->layers, 2U);
  EXPECT_EQ(geometry->v_transposed, GetParam());
  EXPECT_EQ(geometry->tensors.size(), 4U);
  EXPECT_EQ(geometry->cell_bytes(), 2U * 6 + 2 * 6);
  const auto again = learn_geometry(make_blob(spec(run_of(3, 9))));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*geometry, *again);
}

TEST_P(Codec, ModelsWithoutValuesAreUnderstood) {
  auto keys_only = spec(run_of(0, 4));
  keys_only.value_layers = 0;
  const auto geometry = learn_geometry(make_blob(keys_only));
  ASSERT_TRUE(geometry.has_value());
  EXPECT_EQ(geometry->tensors.size(), 2U);
}

TEST_P(Codec, CutThenAssembledIsTheSameBlob) {
  const auto blob = make_blob(spec(run_of(0, 12)));
  const KvCodec c = codec(4, spec({}));
  const auto run = c.open(blob, 0, 12);
  ASSERT_TRUE(run.has_value());
  std::vector<std::vector<std::byte>> blocks;
  for (int32_t b = 0; b < 3; ++b) blocks.push_back(block(c, *run, 4 * b));
  const std::vector<std::span<const std::byte>> views(blocks.begin(), blocks.end());
  std::vector<std::byte> out(c.blob_bytes(12));
  c.assemble(0, 0, nullptr, 0, views, out);
  EXPECT_EQ(out, blob);
}

TEST_P(Codec, OrderOfCellsDoesNotChangeABlock) {
  const KvCodec c = codec(4, spec({}));
  const auto straight = make_blob(spec(run_of(8, 16)));
  const auto shuffled = make_blob(spec({13, 8, 9, 15, 10, 14, 12, 11}));
  const auto a = c.open(straight, 8, 16);
  const auto b = c.open(shuffled, 8, 16);
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_GT(b->pieces.size(), a->pieces.size());
  EXPECT_EQ(block(c, *a, 8), block(c, *b, 8));
  EXPECT_EQ(block(c, *a, 12), block(c, *b, 12));
}

TEST_P(Codec, BlocksJoinAnExistingPrefix) {
  const KvCodec c = codec(4, spec({}));
  const auto whole = make_blob(spec(run_of(0, 12)));
  const auto prefix_blob = make_blob(spec({2, 3, 0, 1}));
  const auto run = c.open(whole, 0, 12);
  const auto prefix = c.open(prefix_blob, 0, 4);
  ASSERT_TRUE(run.has_value() && prefix.has_value());
  const auto b1 = block(c, *run, 4);
  const auto b2 = block(c, *run, 8);
  const std::vector<std::span<const std::byte>> views{b1, b2};
  std::vector<std::byte> out(c.blob_bytes(12));
  c.assemble(0, 0, &*prefix, 4, views, out);
  EXPECT_EQ(out, whole);
}

TEST_P(Codec, StreamsOfOthersStayEmpty) {
  auto lane = spec(run_of(0, 8));
  lane.streams = 4;
  lane.stream = 2;
  lane.seq = 2;
  const auto blob = make_blob(lane);
  const KvCodec c = codec(4, lane);
  const auto run = c.open(blob, 0, 8);
  ASSERT_TRUE(run.has_value());
  const auto b0 = block(c, *run, 0);
  const auto b1 = block(c, *run, 4);
  const std::vector<std::span<const std::byte>> views{b0, b1};
  std::vector<std::byte> out(c.blob_bytes(8));
  c.assemble(2, 2, nullptr, 0, views, out);
  EXPECT_EQ(out, blob);
  // The payload knows neither sequence nor stream: it moves between lanes and layouts.
  const auto plain = make_blob(spec(run_of(0, 8)));
  const KvCodec unified = codec(4, spec({}));
  const auto plain_run = unified.open(plain, 0, 8);
  ASSERT_TRUE(plain_run.has_value());
  EXPECT_EQ(block(unified, *plain_run, 4), b1);
}

TEST_P(Codec, EveryTruncationIsCorrectlyRefused) {
  const auto blob = make_blob(spec(run_of(0, 4)));
  const KvCodec c = codec(4, spec({}));
  for (size_t n = 0; n < blob.size(); ++n) {
    const std::span<const std::byte> part(blob.data(), n);
    const auto run = c.open(part, 0, 4);
    ASSERT_FALSE(run.has_value()) << n;
    ASSERT_EQ(run.error().code, base::Code::kCorrupt);
    (void)learn_geometry(part);  // must not read past the end (ASan)
  }
}

TEST_P(Codec, AnyDamagedHeaderIsRefusedOrHarmless) {
  const auto good = make_blob(spec(run_of(0, 4)));
  const KvCodec c = codec(2, spec({}));
  size_t refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int value : {0x00, 0x7f, 0xff}) {
      auto bad = good;
      bad[i] = static_cast<std::byte>(value);
      (void)learn_geometry(bad);
      const auto run = c.open(bad, 0, 4);
      if (run.has_value()) {
        block(c, *run, 2);
      } else {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100U);
}

TEST_P(Codec, WrongPositionsAreRefused) {
  const KvCodec c = codec(4, spec({}));
  EXPECT_FALSE(c.open(make_blob(spec({0, 1, 2, 4})), 0, 4).has_value());
  EXPECT_FALSE(c.open(make_blob(spec({0, 1, 1, 3})), 0, 4).has_value());
  EXPECT_FALSE(c.open(make_blob(spec({4, 5, 6, 7})), 0, 4).has_value());
  EXPECT_TRUE(c.open(make_blob(spec({4, 5, 6, 7})), 4, 8).has_value());
}

TEST_P(Codec, OtherGeometryIsRefused) {
  const KvCodec c = codec(4, spec({}));
  auto other = spec(run_of(0, 4));
  other.v_trans = !other.v_trans;
  EXPECT_FALSE(c.open(make_blob(other), 0, 4).has_value());
  EXPECT_NE(learn_geometry(make_blob(other))->digest(), c.geometry().digest());
}

}  // namespace
}  // namespace kvtide::engine
