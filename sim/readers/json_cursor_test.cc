#include "sim/readers/json_cursor.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvtide::sim {
namespace {

TEST(JsonCursor, ReadsWhatIsAskedForAndSkipsTheRest) {
  JsonCursor in(R"( {"a": 3, "skipped": {"x": [1, {"y": "]}\""}], "z": null}, "b": [ "p", "q" ], "c": 1.5e1, "d": true, "e": []} )");
  int64_t a = 0;
  double c = 0;
  bool d = false;
  std::vector<std::string> b;
  std::string_view key, word;
  int elements_of_e = 0;
  for (in.enter_object(); in.next_key(key);) {
    if (key == "a")
      in.read_int(a, 0, 10);
    else if (key == "b")
      for (in.enter_array(); in.next_element() && in.read_word(word);) b.emplace_back(word);
    else if (key == "c")
      in.read_number(c, 0, 100);
    else if (key == "d")
      in.read_bool(d);
    else if (key == "e")
      for (in.enter_array(); in.next_element() && in.skip();) ++elements_of_e;
    else
      in.skip();
  }
  EXPECT_TRUE(in.at_end()) << in.problem();
  EXPECT_EQ(a, 3);
  EXPECT_EQ(b, (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(c, 15);
  EXPECT_TRUE(d);
  EXPECT_EQ(elements_of_e, 0);
}

TEST(JsonCursor, DecodesEscapesInTextsAndRefusesBrokenOnes) {
  std::string text;
  EXPECT_TRUE(JsonCursor(R"("a\n\u00e9\"")").read_text(text, 10));
  EXPECT_EQ(text, "a\n\xc3\xa9\"");
  EXPECT_FALSE(JsonCursor(R"("\x")").read_text(text, 10));
  EXPECT_FALSE(JsonCursor("\"\xff\"").read_text(text, 10));
  EXPECT_FALSE(JsonCursor(R"("12345678901")").read_text(text, 10));
  std::string_view word;
  EXPECT_FALSE(JsonCursor(R"("a\n")").read_word(word));
}

TEST(JsonCursor, NamesTheFieldAndSticksToTheFirstProblem) {
  JsonCursor in(R"({"in": -1, "out": "x"})");
  std::string_view key;
  int64_t value = 7;
  in.enter_object();
  ASSERT_TRUE(in.next_key(key));
  EXPECT_FALSE(in.read_int(value, 0, 100));
  EXPECT_FALSE(in.next_key(key));
  EXPECT_FALSE(in.skip());
  EXPECT_FALSE(in.at_end());
  EXPECT_EQ(value, 7);
  EXPECT_EQ(in.problem(), R"(field "in": expected a whole number from 0 to 100)");
}

TEST(JsonCursor, RefusesNumbersThatAreNone) {
  for (const char* text : {"", "1.5", "1e2", "99999999999999999999", "nan", "--1", "1x", "\"1\"", "{"}) {
    int64_t value = 0;
    EXPECT_FALSE(JsonCursor(text).read_int(value, -1000, 1000)) << text;
  }
  for (const char* text : {"", "inf", "nan", "1e999", "0x10", "true", "-"}) {
    double value = 0;
    EXPECT_FALSE(JsonCursor(text).read_number(value, -1000, 1000)) << text;
  }
}

TEST(JsonCursor, RefusesTextsThatEndTooEarlyOrTooLate) {
  const auto reads = [](std::string_view text) {
    JsonCursor in(text);
    std::string_view key;
    for (in.enter_object(); in.next_key(key);) in.skip();
    return in.at_end();
  };
  const std::string_view whole = R"({"a":[1,{"b":"c\\"}],"d":-2.5})";
  EXPECT_TRUE(reads(whole));
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(reads(whole.substr(0, size))) << size;
  EXPECT_FALSE(reads(R"({"a":1} x)"));
  EXPECT_FALSE(reads(R"({"a":1 "b":2})"));
  EXPECT_FALSE(reads(R"({"a":})"));
  EXPECT_FALSE(reads(R"([1])"));
  EXPECT_FALSE(reads(std::string_view("{}\0", 3)));
}

TEST(JsonCursor, ADeepNestDoesNotRecurse) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  JsonCursor in(deep);
  EXPECT_TRUE(in.skip());
  EXPECT_TRUE(in.at_end());
}

}  // namespace
}  // namespace kvtide::sim
