#include "sim/readers/line_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/readers/testing/temp_folder.h"

namespace kvtide::sim {
namespace {

using base::Code;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> lines_of(LineReader& reader) {
  std::vector<std::string> lines;
  for (std::string_view line; reader.next(line);) lines.emplace_back(line);
  return lines;
}

TEST(LineReader, SkipsBlankLinesButCountsThem) {
  LineReader reader = LineReader::over("a\r\n\n  \nb", "text");
  std::string_view line;
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line, "a");
  EXPECT_EQ(reader.number(), 1);
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line, "b");
  EXPECT_EQ(reader.corrupt("bad").value().message, "text, line 4: bad");
  EXPECT_FALSE(reader.next(line));
  EXPECT_TRUE(reader.status());
}

TEST(LineReader, LongLinesOfCompressedAndPlainFilesComeWhole) {
  const TempFolder folder;
  const std::string text = std::string(3'000'000, 'x') + "\n" + "y\n" + std::string(1'048'575, 'z') + "\nlast";
  for (const auto& file : {folder.write("plain", text), folder.write_zstd("packed", text)}) {
    auto reader = LineReader::open(file);
    ASSERT_TRUE(reader);
    const auto lines = lines_of(*reader);
    EXPECT_TRUE(reader->status());
    ASSERT_EQ(lines.size(), 4);
    EXPECT_EQ(lines[0], std::string(3'000'000, 'x'));
    EXPECT_EQ(lines[1], "y");
    EXPECT_EQ(lines[2], std::string(1'048'575, 'z'));
    EXPECT_EQ(lines[3], "last");
  }
}

TEST(LineReader, FramesAfterOneAnotherAreOneText) {
  const TempFolder folder;
  auto reader = LineReader::open(folder.write("f", TempFolder::zstd("a\nb") + TempFolder::zstd("c\nd\n")));
  ASSERT_TRUE(reader);
  EXPECT_THAT(lines_of(*reader), ElementsAre("a", "bc", "d"));
  EXPECT_TRUE(reader->status());
}

TEST(LineReader, ACutOrBrokenCompressedFileIsCorrupt) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i * 7919 % 10'007) + "\n";
  const std::string packed = TempFolder::zstd(text);
  for (const size_t size : {size_t{4}, size_t{5}, packed.size() / 2, packed.size() - 1}) {
    auto reader = LineReader::open(folder.write("cut", packed.substr(0, size)));
    ASSERT_TRUE(reader);
    lines_of(*reader);
    ASSERT_FALSE(reader->status()) << size;
    EXPECT_EQ(reader->status().error().code, Code::kCorrupt);
  }
  auto reader = LineReader::open(folder.write("garbage", packed + "and more"));
  ASSERT_TRUE(reader);
  lines_of(*reader);
  EXPECT_FALSE(reader->status());
}

TEST(LineReader, ALineThatIsTooLongIsAnErrorAndIsNotKept) {
  const TempFolder folder;
  auto reader = LineReader::open(folder.write_zstd("bomb", "ok\n" + std::string(kLineBytesMax + 1, 'x') + "\nok"));
  ASSERT_TRUE(reader);
  EXPECT_THAT(lines_of(*reader), ElementsAre("ok"));
  ASSERT_FALSE(reader->status());
  EXPECT_THAT(reader->status().error().message, HasSubstr("a line over 67108864 bytes"));
}

TEST(LineReader, SaysWhenThereIsNoSuchFile) {
  const TempFolder folder;
  EXPECT_EQ(LineReader::open(folder.path() / "absent").error().code, Code::kNotFound);
  EXPECT_EQ(LineReader::open(folder.path()).error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvtide::sim
