#include "services/text/stop_matcher.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::text {
namespace {

std::shared_ptr<const StopSet> Stops(StopOptions options) {
  auto stops = StopSet::Create(std::move(options));
  EXPECT_TRUE(stops.ok()) << stops.status();
  return *stops;
}

// Feeds pieces as the texts of tokens 0, 1, 2 ...; what was shown while it went, and the match.
struct Outcome {
  std::string text;
  std::optional<StopMatch> match;
};
Outcome FeedPieces(const std::shared_ptr<const StopSet>& stops,
                   const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (size_t i = 0; i < pieces.size() && !outcome.match.has_value(); ++i) {
    EXPECT_FALSE(matcher.FeedId(static_cast<int32_t>(i)).has_value());
    outcome.match = matcher.FeedText(pieces[i], &outcome.text);
  }
  return outcome;
}

StopMatch StringMatch(int32_t token, int32_t index) {
  return {StopMatch::Kind::kStopString, token, index};
}

TEST(StopMatcherTest, AStringIsFoundAcrossTokensAndTextIsCutBeforeIt) {
  const auto stops = Stops({.stop_strings = {"STOP"}});
  const Outcome outcome = FeedPieces(stops, {"go S", "T", "OP on", "never"});
  EXPECT_EQ(outcome.text, "go ");
  EXPECT_EQ(outcome.match, StringMatch(2, 0));
}

TEST(StopMatcherTest, AStringIsKeptOnRequestButNothingBehindIt) {
  const auto stops = Stops({.stop_strings = {"STOP"}, .keeps_stop_in_text = true});
  EXPECT_EQ(FeedPieces(stops, {"go S", "TOP on"}).text, "go STOP");
}

TEST(StopMatcherTest, WhatMayBecomeAStopIsHeldBackNoLongerThanThat) {
  StopMatcher matcher(Stops({.stop_strings = {"abac"}}));
  std::string text;
  matcher.FeedText("xaba", &text);
  EXPECT_EQ(text, "x");
  matcher.FeedText("ba", &text);
  EXPECT_EQ(text, "xab");
  matcher.FeedText("z", &text);
  EXPECT_EQ(text, "xababaz");
  matcher.FeedText("ab", &text);
  EXPECT_EQ(text, "xababaz");
  matcher.Release(&text);
  EXPECT_EQ(text, "xababazab");
}

TEST(StopMatcherTest, TheStringThatIsCompleteFirstWins) {
  EXPECT_EQ(FeedPieces(Stops({.stop_strings = {"abcdef", "cd"}}), {"abcdef"}).match,
            StringMatch(0, 1));
}

TEST(StopMatcherTest, OfStringsCompleteTogetherTheLongestWins) {
  const Outcome outcome = FeedPieces(Stops({.stop_strings = {"c", "bc", "abc"}}), {"xabc"});
  EXPECT_EQ(outcome.match, StringMatch(0, 2));
  EXPECT_EQ(outcome.text, "x");
}

TEST(StopMatcherTest, OfEqualStringsTheFirstIsNamed) {
  EXPECT_EQ(FeedPieces(Stops({.stop_strings = {"x", "ab", "ab"}}), {"ab"}).match,
            StringMatch(0, 1));
}

TEST(StopMatcherTest, IdsStopByTheirKind) {
  const auto stops = Stops({.stop_ids = {7, 5}, .eos_ids = {5, 2}});
  EXPECT_EQ(StopMatcher(stops).FeedId(2), (StopMatch{.kind = StopMatch::Kind::kEosId, .id = 2}));
  EXPECT_EQ(StopMatcher(stops).FeedId(7), (StopMatch{.kind = StopMatch::Kind::kStopId, .id = 7}));
  EXPECT_EQ(StopMatcher(stops).FeedId(5), (StopMatch{.kind = StopMatch::Kind::kStopId, .id = 5}));
  EXPECT_EQ(StopMatcher(stops).FeedId(3), std::nullopt);
}

TEST(StopMatcherTest, IgnoringEosLeavesStopIds) {
  const auto stops = Stops({.stop_ids = {5}, .eos_ids = {5, 2}, .ignores_eos = true});
  EXPECT_EQ(StopMatcher(stops).FeedId(2), std::nullopt);
  EXPECT_TRUE(StopMatcher(stops).FeedId(5).has_value());
}

TEST(StopMatcherTest, NoIdStopsBeforeTheLeastCount) {
  StopMatcher matcher(Stops({.eos_ids = {2}, .new_tokens_min = 3}));
  EXPECT_EQ(matcher.FeedId(2), std::nullopt);
  EXPECT_EQ(matcher.FeedId(2), std::nullopt);
  EXPECT_EQ(matcher.FeedId(2), std::nullopt);
  EXPECT_TRUE(matcher.FeedId(2).has_value());
}

TEST(StopMatcherTest, AStringThatIsCompleteTooEarlyStaysText) {
  const auto stops = Stops({.stop_strings = {"aa"}, .new_tokens_min = 2});
  const Outcome early = FeedPieces(stops, {"xa", "a", "b"});
  EXPECT_EQ(early.text, "xaab");
  EXPECT_EQ(early.match, std::nullopt);
  // Its end may be the beginning of the next one, and a string may begin too early but not end so.
  const Outcome overlapping = FeedPieces(stops, {"xa", "a", "a"});
  EXPECT_EQ(overlapping.match, StringMatch(2, 0));
  EXPECT_EQ(overlapping.text, "xa");
}

TEST(StopMatcherTest, EmptyAndBrokenStringsAreRefusedByIndex) {
  EXPECT_EQ(StopSet::Create({.stop_strings = {"a", ""}}).status().message(),
            "stop_strings[1] is empty");
  EXPECT_EQ(StopSet::Create({.stop_strings = {"\xE2\x82"}}).status().message(),
            "stop_strings[0] is not valid UTF-8");
}

// By definition: the first end of a match, there the longest string, there the lowest index.
struct Expected {
  std::string text;
  int32_t string_index = -1;
};
Expected ByDefinition(const std::vector<std::string>& strings, const std::string& text) {
  Expected expected{text};
  size_t best_end = std::string::npos, best_size = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    const size_t begin = text.find(strings[i]);
    if (begin == std::string::npos) continue;
    const size_t end = begin + strings[i].size();
    if (end > best_end || (end == best_end && strings[i].size() <= best_size)) continue;
    best_end = end, best_size = strings[i].size();
    expected = {text.substr(0, begin), static_cast<int32_t>(i)};
  }
  return expected;
}

TEST(StopMatcherTest, EqualsTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(5);
  const auto random_text = [&](size_t size) {
    std::string text(size, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int matches = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    StopOptions options;
    for (size_t i = 0; i < 1 + random() % 4; ++i) {
      options.stop_strings.push_back(random_text(1 + random() % 9));
    }
    const std::string text = random_text(random() % 40);
    const Expected expected = ByDefinition(options.stop_strings, text);
    StopMatcher matcher(Stops(options));
    std::string shown;
    std::optional<StopMatch> match;
    for (size_t at = 0; at < text.size() && !match.has_value();) {
      const size_t size = std::min(1 + random() % 6, text.size() - at);
      matcher.FeedId(0);
      match = matcher.FeedText(text.substr(at, size), &shown);
      ASSERT_EQ(shown, expected.text.substr(0, shown.size()));
      at += size;
    }
    if (!match.has_value()) matcher.Release(&shown);
    ASSERT_EQ(shown, expected.text);
    ASSERT_EQ(match.has_value() ? match->string_index : -1, expected.string_index);
    matches += match.has_value();
  }
  EXPECT_GT(matches, 1000);
  EXPECT_LT(matches, 4900);
}

}  // namespace
}  // namespace lockstep::text
