#include "services/text/split_pattern.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/text/pattern_translation.h"

namespace lockstep::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Split(const SplitRule& rule, const std::string& text) {
  const auto pattern = SplitPattern::Create(rule);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  if (!pattern.ok()) return {};
  MatchScratch scratch;
  std::vector<std::string_view> pieces;
  const absl::Status status = pattern->Split(text, &scratch, &pieces);
  EXPECT_TRUE(status.ok()) << status;
  return {pieces.begin(), pieces.end()};
}

TEST(SplitPatternTest, IsolatedKeepsMatchesAndGaps) {
  EXPECT_THAT(Split({.pattern = "\\d+"}, "a12b3"), ElementsAre("a", "12", "b", "3"));
  EXPECT_THAT(Split({.pattern = "x"}, "abc"), ElementsAre("abc"));
  EXPECT_THAT(Split({.pattern = "x"}, ""), ElementsAre());
}

TEST(SplitPatternTest, RemovedKeepsOneSide) {
  EXPECT_THAT(Split({.pattern = "\\s+", .removes = true}, " a  b "), ElementsAre("a", "b"));
  EXPECT_THAT(Split({.pattern = "\\s+", .removes = true, .removes_gaps = true}, " a  b"),
              ElementsAre(" ", "  "));
}

TEST(SplitPatternTest, ALiteralIsNoRegularExpression) {
  EXPECT_THAT(Split({.pattern = "a.b|[", .is_literal = true}, "axb|[a.b|[c"),
              ElementsAre("axb|[", "a.b|[", "c"));
}

TEST(SplitPatternTest, AnEmptyMatchCutsAndTheSearchGoesOn) {
  EXPECT_THAT(Split({.pattern = "(?=x)"}, "axxb"), ElementsAre("a", "x", "xb"));
  EXPECT_THAT(Split({.pattern = "x*"}, "axx\u00E9"), ElementsAre("a", "xx", "\u00E9"));
}

// U+180E is no white space in Unicode or in Oniguruma; PCRE2's own \s takes it.
TEST(SplitPatternTest, WhiteSpaceIsUnicodesPropertyOfThatName) {
  EXPECT_THAT(Split({.pattern = "\\s+"}, "a\u180Eb\u0085\u3000c"),
              ElementsAre("a\u180Eb", "\u0085\u3000", "c"));
  EXPECT_THAT(Split({.pattern = "[^\\S\\n]+"}, "a \n b"), ElementsAre("a", " ", "\n", " ", "b"));
}

// Hugging Face's library says so too (seen with a vocabulary that tells the splits apart); a
// JavaScript reading of the same files that folds only ASCII does not.
TEST(SplitPatternTest, IgnoringCaseFoldsLongS) {
  EXPECT_THAT(Split({.pattern = "(?i:'s)"}, "a'\u017Fb'S"), ElementsAre("a", "'\u017F", "b", "'S"));
}

TEST(SplitPatternTest, LineAnchorsMatchInsideTheText) {
  EXPECT_THAT(Split({.pattern = "^b$"}, "a\nb\nb"), ElementsAre("a\n", "b", "\n", "b"));
}

TEST(SplitPatternTest, BacktrackingWithoutEndIsAnError) {
  const auto pattern = SplitPattern::Create({.pattern = "(a+)+b|(a|a)+c", .where = "here"});
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  MatchScratch scratch;
  std::vector<std::string_view> pieces;
  const std::string text(64, 'a');
  const absl::Status status = pattern->Split(text, &scratch, &pieces);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("here"));
}

// Needs more than the stack that matching starts with.
TEST(SplitPatternTest, ALongGroupRepetitionGetsAsMuchStackAsItNeeds) {
  const std::string text(100'000, 'a');
  EXPECT_THAT(Split({.pattern = "(?:a|b)+"}, text + "." + text), ElementsAre(text, ".", text));
}

TEST(PatternTranslationTest, RefusesWhatTheLibrariesReadDifferently) {
  for (const char* pattern : {"\\w+",    "\\bx",        "\\h",     "\\p{Han}", "\\p{Script=Han}",
                              "[a&&b]",  "[[:alpha:]]", "[a[bc]]", "(?i)x",    "(?<name>x)",
                              "(?m:x)",  "(*ACCEPT)",   "a{,3}",   "a{2}+",    "a{2}?",
                              "a{5000}", "\\1",         "\\x41",   "\\G",      "\\K",
                              "\\Z",     "\\R",         "\\X",     "\\Qx\\E",  "[]a]",
                              "[abc",    "x\\",         "\\p",     "\\u12",    "\\pL",
                              "\\p{^}"}) {
    EXPECT_FALSE(TranslatePattern(pattern).ok()) << pattern;
  }
}

TEST(PatternTranslationTest, RefusalsNameTheConstruct) {
  EXPECT_THAT(std::string(TranslatePattern("a\\wb").status().message()), HasSubstr("\\w"));
  EXPECT_THAT(std::string(TranslatePattern("\\p{Han}").status().message()), HasSubstr("\\p{Han}"));
  EXPECT_THAT(
      std::string(SplitPattern::Create({.pattern = "(", .where = "f: p"}).status().message()),
      HasSubstr("f: p"));
}

TEST(PatternTranslationTest, PatternsOfKnownModelsAreUnderstood) {
  for (const char* pattern :
       {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|"
        "\\s+(?!\\S)|\\s+",
        "[!\"#$%&'()*+,\\-./"
        ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
        "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "[一-龥぀-ゟ゠-ヿ]+",
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
        "+"}) {
    EXPECT_TRUE(SplitPattern::Create({.pattern = pattern}).ok()) << pattern;
  }
}

}  // namespace
}  // namespace lockstep::text
