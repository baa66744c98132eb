#include "services/text/nfc.h"

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/text/utf8.h"
#include "utf8proc.h"

namespace lockstep::text {
namespace {

// utf8proc's own normalisation, whose ordering loop is another one than ours.
std::string LibraryNfc(const std::string& text) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  EXPECT_GE(size, 0);
  const std::string normalized(reinterpret_cast<const char*>(out), static_cast<size_t>(size));
  std::free(out);
  return normalized;
}

std::string Utf8(const std::vector<char32_t>& code_points) {
  std::string text;
  for (const char32_t c : code_points) AppendUtf8(c, &text);
  return text;
}

TEST(NfcTest, ComposesSingletonsHangulAndMarksOutOfOrder) {
  EXPECT_EQ(NormalizeNfc(Utf8({'e', 0x301})), Utf8({0xE9}));
  EXPECT_EQ(NormalizeNfc(Utf8({0x212B})), Utf8({0xC5}));
  EXPECT_EQ(NormalizeNfc(Utf8({0x1100, 0x1161, 0x11A8})), Utf8({0xAC01}));
  EXPECT_EQ(NormalizeNfc(Utf8({'s', 0x307, 0x323})), Utf8({0x1E69}));
  EXPECT_EQ(NormalizeNfc(Utf8({0x958})), Utf8({0x915, 0x93C}));
  EXPECT_EQ(NormalizeNfc(""), "");
}

TEST(NfcTest, EqualsTheLibraryOnRandomMarks) {
  std::mt19937 random(7);
  const std::vector<char32_t> alphabet = {'a',    'e',    0xE9,   0x300,  0x301,  0x323,   0x327,
                                          0x345,  0x93C,  0x915,  0x958,  0x1100, 0x1161,  0x11A8,
                                          0xAC00, 0x212B, 0x3099, 0x304B, ' ',    0x1D15E, 0x34F};
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<char32_t> code_points(1 + random() % 24);
    for (char32_t& c : code_points) c = alphabet[random() % alphabet.size()];
    const std::string text = Utf8(code_points);
    ASSERT_EQ(NormalizeNfc(text), LibraryNfc(text)) << "trial " << trial;
  }
}

TEST(NfcTest, NoCharacterThatIsClearlyNfcTakesPartInAComposition) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string text = Utf8({c});
    if (IsClearlyNfc(text)) {
      ASSERT_EQ(LibraryNfc(text), text) << std::hex << static_cast<uint32_t>(c);
      ASSERT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class, 0);
    }
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32,
                                               UTF8PROC_DECOMPOSE, &boundary);
    for (utf8proc_ssize_t i = 1; i < count; ++i) {
      ASSERT_FALSE(IsClearlyNfc(Utf8({static_cast<char32_t>(parts[i])})))
          << std::hex << static_cast<uint32_t>(c);
    }
  }
}

// A quadratic ordering of 400,000 marks would run into the test's time limit.
TEST(NfcTest, ALongRunOfMarksOutOfOrderIsSorted) {
  std::string alternating, low, high;
  for (int i = 0; i < 200'000; ++i) {
    alternating += Utf8({0x301, 0x327});
    low += Utf8({0x327});
    high += Utf8({0x301});
  }
  EXPECT_EQ(NormalizeNfc("x" + alternating), "x" + low + high);
}

}  // namespace
}  // namespace lockstep::text
