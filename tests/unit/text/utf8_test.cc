#include "services/text/utf8.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::text {
namespace {

// The UTF-8 decoder of the Encoding Standard, step by step as it is written there.
std::string WhatwgDecode(const std::string& bytes) {
  std::string text;
  char32_t code_point = 0;
  int needed = 0, seen = 0;
  uint8_t lower = 0x80, upper = 0xBF;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    if (needed == 0) {
      if (byte <= 0x7F) {
        text.push_back(bytes[i]);
      } else if (byte >= 0xC2 && byte <= 0xDF) {
        needed = 1, code_point = byte & 0x1F;
      } else if (byte >= 0xE0 && byte <= 0xEF) {
        if (byte == 0xE0) lower = 0xA0;
        if (byte == 0xED) upper = 0x9F;
        needed = 2, code_point = byte & 0xF;
      } else if (byte >= 0xF0 && byte <= 0xF4) {
        if (byte == 0xF0) lower = 0x90;
        if (byte == 0xF4) upper = 0x8F;
        needed = 3, code_point = byte & 0x7;
      } else {
        text += kReplacementCharacter;
      }
      continue;
    }
    const bool continues = byte >= lower && byte <= upper;
    lower = 0x80, upper = 0xBF;
    if (!continues) {
      code_point = 0, needed = seen = 0;
      text += kReplacementCharacter;
      --i;
      continue;
    }
    code_point = (code_point << 6) | (byte & 0x3F);
    if (++seen == needed) {
      AppendUtf8(code_point, &text);
      code_point = 0, needed = seen = 0;
    }
  }
  if (needed != 0) text += kReplacementCharacter;
  return text;
}

std::string FeedInTwo(const std::string& bytes, size_t cut) {
  Utf8Stream stream;
  std::string text;
  stream.Feed(std::string_view(bytes).substr(0, cut), &text);
  EXPECT_TRUE(IsValidUtf8(text));
  stream.Feed(std::string_view(bytes).substr(cut), &text);
  if (!stream.tail_bytes().empty()) text += kReplacementCharacter;
  return text;
}

// Both ends of every range that the standard tells apart.
const std::vector<uint8_t> kBorderBytes = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                           0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                           0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};

TEST(Utf8Test, EveryMixOfFourBorderBytesIsRepairedByTheWhatwgRule) {
  for (const uint8_t a : kBorderBytes) {
    for (const uint8_t b : kBorderBytes) {
      for (const uint8_t c : kBorderBytes) {
        for (const uint8_t d : kBorderBytes) {
          const std::string bytes = {static_cast<char>(a), static_cast<char>(b),
                                     static_cast<char>(c), static_cast<char>(d)};
          const std::string expected = WhatwgDecode(bytes);
          ASSERT_EQ(ReplaceInvalidUtf8(bytes), expected) << testing::PrintToString(bytes);
          ASSERT_EQ(IsValidUtf8(bytes), expected == bytes);
        }
      }
    }
  }
}

TEST(Utf8Test, EveryCodePointIsReadBackAndLeftAlone) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string bytes;
    AppendUtf8(c, &bytes);
    const Utf8Unit unit = ReadUtf8Unit(bytes);
    ASSERT_EQ(unit.kind, Utf8Unit::Kind::kValid);
    ASSERT_EQ(unit.size_bytes, bytes.size());
    ASSERT_EQ(unit.code_point, c);
  }
}

TEST(Utf8Test, WhereAStreamIsCutDoesNotMatter) {
  const std::string bytes =
      "a\xE2\x82\xAC\xF0\x9F\x98\x80\xE2\x82z\xFF\xED\xA0\x80\xC3\xF0\x9F\x98";
  const std::string expected = WhatwgDecode(bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) EXPECT_EQ(FeedInTwo(bytes, cut), expected);
}

TEST(Utf8Test, AStreamKeepsWhatMayStillBecomeACharacter) {
  Utf8Stream stream;
  std::string text;
  stream.Feed("x\xF0\x9F\x98", &text);
  EXPECT_EQ(text, "x");
  EXPECT_EQ(stream.tail_bytes(), "\xF0\x9F\x98");
  stream.Feed("\x80", &text);
  EXPECT_EQ(text, "x\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.tail_bytes(), "");
}

TEST(Utf8Test, LongValidTextIsFoundValid) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i % 7 == 0 ? "\xE4\xB8\xAD" : "0123456789";
  EXPECT_TRUE(IsValidUtf8(text));
  EXPECT_EQ(ValidUtf8Prefix(text + "\x80" + text), text.size());
}

}  // namespace
}  // namespace lockstep::text
