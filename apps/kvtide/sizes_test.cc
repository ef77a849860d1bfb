#include "apps/kvtide/sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvtide::app {
namespace {

TEST(Sizes, AreWrittenAsPeopleWriteThem) {
  EXPECT_EQ(parse_bytes("0").value(), 0);
  EXPECT_EQ(parse_bytes("4096").value(), 4096);
  EXPECT_EQ(parse_bytes("512M").value(), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("4g").value(), int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("1.5GiB").value(), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("2 KB").value(), 2048);
  EXPECT_EQ(parse_bytes("7B").value(), 7);
}

TEST(Sizes, NonsenseIsAnErrorThatTeaches) {
  for (const char* text : {"", "x", "G", "12Q", "12GG", "-1M", "nan", "inf", "9999999T"}) {
    const auto bytes = parse_bytes(text);
    ASSERT_FALSE(bytes) << text;
    EXPECT_THAT(bytes.error().message, testing::HasSubstr("512M")) << text;
  }
}

TEST(Sizes, ArePrintedInTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{5} << 30), "5.0 GiB");
}

}  // namespace
}  // namespace kvtide::app
