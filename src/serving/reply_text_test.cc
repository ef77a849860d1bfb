#include "serving/reply_text.h"

#include <gtest/gtest.h>

namespace kvtide::serving {
namespace {

std::string add_all(ReplyText& text, const std::vector<std::string>& pieces) {
  std::string shown;
  for (const std::string& piece : pieces) shown += text.add(piece);
  return shown;
}

TEST(ReplyText, ShowsTextAtOnceWhenNothingCanStopIt) {
  ReplyText text({});
  EXPECT_EQ(text.add("Hello"), "Hello");
  EXPECT_EQ(text.add(""), "");
  EXPECT_EQ(text.flush(), "");
  EXPECT_FALSE(text.stopped());
}

TEST(ReplyText, AStopStringInsideOneTokenCutsTheReply) {
  ReplyText text({"END"});
  EXPECT_EQ(text.add("abcENDxyz"), "abc");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.add("more"), "");
  EXPECT_EQ(text.flush(), "");
}

TEST(ReplyText, AStopStringAcrossTokensIsHeldBackUntilItIsDecided) {
  ReplyText text({"STOP"});
  EXPECT_EQ(text.add("go S"), "go ");
  EXPECT_EQ(text.add("T"), "");
  EXPECT_EQ(text.add("O"), "");
  EXPECT_EQ(text.add("P tail"), "");
  EXPECT_TRUE(text.stopped());
}

TEST(ReplyText, WhatOnlyLookedLikeAStopStringComesOut) {
  ReplyText text({"STOP"});
  EXPECT_EQ(text.add("STO"), "");
  EXPECT_EQ(text.add("RE"), "STORE");
  EXPECT_EQ(text.add("ST"), "");
  EXPECT_EQ(text.flush(), "ST");
  EXPECT_FALSE(text.stopped());
}

TEST(ReplyText, AStopStringThatBeginsWithinItsOwnBeginningIsFound) {
  ReplyText text({"aab"});
  EXPECT_EQ(add_all(text, {"x", "a", "a", "a", "b", "y"}), "xa");
  EXPECT_TRUE(text.stopped());
}

TEST(ReplyText, TheFirstOfSeveralStopStringsWins) {
  ReplyText text({"later", "now", ""});
  EXPECT_EQ(text.add("1 now 2 later"), "1 ");
  EXPECT_TRUE(text.stopped());
}

TEST(ReplyText, ACharacterSplitOverTokensComesOutWhole) {
  ReplyText text({});
  EXPECT_EQ(text.add("a\xF0"), "a");
  EXPECT_EQ(text.add("\x9F"), "");
  EXPECT_EQ(text.add("\x98"), "");
  EXPECT_EQ(text.add("\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(text.add("\xC3"), "");
  EXPECT_EQ(text.add("\xA9\xE2\x82"), "\xC3\xA9");
  EXPECT_EQ(text.add("\xAC"), "\xE2\x82\xAC");
}

TEST(ReplyText, AStopStringOfManyBytesIsFoundByteByByte) {
  ReplyText text({"\xE2\x82\xAC"});
  EXPECT_EQ(add_all(text, {"5", "\xE2", "\x82", "\xAC", "6"}), "5");
  EXPECT_TRUE(text.stopped());
}

TEST(ReplyText, AReplyThatEndsInsideACharacterShowsAReplacement) {
  ReplyText text({});
  EXPECT_EQ(text.add("a\xE2\x82"), "a");
  EXPECT_EQ(text.flush(), "\xEF\xBF\xBD");
}

TEST(ReplyText, BytesThatAreNoCharacterNeverComeOut) {
  const std::string replacement = "\xEF\xBF\xBD";
  ReplyText text({});
  // A lead byte that nothing follows, a continuation without a lead, bytes that UTF-8 does not have.
  EXPECT_EQ(add_all(text, {"\xE2", "a"}), replacement + "a");
  EXPECT_EQ(add_all(text, {"\x80", "b"}), replacement + "b");
  EXPECT_EQ(add_all(text, {"\xFF", "c"}), replacement + "c");
  // An overlong zero and a surrogate: three and two ways to write what is not a character.
  const std::string odd = add_all(text, {"\xC0\x80", "d", "\xED\xA0\x80", "e"}) + text.flush();
  EXPECT_EQ(odd.find('\xC0'), std::string::npos);
  EXPECT_EQ(odd.find("\xED\xA0\x80"), std::string::npos);
  EXPECT_NE(odd.find('d'), std::string::npos);
  EXPECT_NE(odd.find('e'), std::string::npos);
}

TEST(ReplyText, ABrokenCharacterInFrontOfAStopStringIsReplaced) {
  ReplyText text({"END"});
  EXPECT_EQ(add_all(text, {"x\xE2", "E", "ND"}), "x\xEF\xBF\xBD");
  EXPECT_TRUE(text.stopped());
}

}  // namespace
}  // namespace kvtide::serving
