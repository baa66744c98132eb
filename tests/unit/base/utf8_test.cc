#include "common/base/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

constexpr char kBad[] = "\xEF\xBF\xBD";

std::string Bad(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += kBad;
  return out;
}

TEST(ToValidUtf8Test, ValidTextIsUnchanged) {
  const std::string text =
      std::string("a\0b", 3) + "\u00e9 \u20ac \U0001F600 \uFFFD \U0010FFFF\x7F";
  EXPECT_EQ(ToValidUtf8(text), text);
}

TEST(ToValidUtf8Test, EachMaximalPrefixBecomesOneReplacement) {
  EXPECT_EQ(ToValidUtf8("a\x80z"), "a" + Bad(1) + "z");  // lone continuation
  EXPECT_EQ(ToValidUtf8("\xE2\x82"), Bad(1));            // cut at the end
  EXPECT_EQ(ToValidUtf8("\xE2\x82z"), Bad(1) + "z");     // cut by another character
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\x98\xF0"), Bad(2));    // cut by another lead
  EXPECT_EQ(ToValidUtf8("\xC0\x80"), Bad(2));            // overlong
  EXPECT_EQ(ToValidUtf8("\xE0\x80\x80"), Bad(3));        // overlong
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), Bad(3));        // surrogate
  EXPECT_EQ(ToValidUtf8("\xF4\x90\x80\x80"), Bad(4));    // above U+10FFFF
  EXPECT_EQ(ToValidUtf8("\xFF\xFE"), Bad(2));            // never a lead
}

}  // namespace
}  // namespace lockstep::base
