#include "services/text/text_assembler.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/text/utf8.h"
#include "tests/support/handmade_tokenizer.h"

namespace lockstep::text {
namespace {

constexpr int32_t kEos = 256, kThink = 257;

std::shared_ptr<const Tokenizer> ByteTokenizer() {
  return MakeHandmadeTokenizer({.special_tokens = {"<eos>"}, .added_tokens = {"<think>"}});
}

std::shared_ptr<const StopSet> Stops(StopOptions options) {
  return *StopSet::Create(std::move(options));
}

std::vector<int32_t> Ids(const std::string& bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

// All that a sequence gives: the deltas one by one, the rest, the tail, the stop.
struct Answer {
  std::vector<std::string> deltas;
  std::string rest;
  std::string tail;
  std::optional<StopMatch> stop;
  int64_t token_count = 0;

  std::string Text() const {
    std::string text;
    for (const std::string& delta : deltas) text += delta;
    return text + rest;
  }
  friend bool operator==(const Answer&, const Answer&) = default;
};

Answer Assemble(TextAssembler assembler, const std::vector<int32_t>& ids) {
  Answer answer;
  for (const int32_t id : ids) {
    std::string delta;
    const bool stopped = assembler.Feed(id, &delta).has_value();
    answer.deltas.push_back(delta);
    EXPECT_TRUE(IsValidUtf8(delta));
    if (stopped) break;
  }
  assembler.Finish(&answer.rest);
  answer.tail = assembler.text_tail_bytes();
  answer.stop = assembler.stop();
  answer.token_count = assembler.token_count();
  return answer;
}

Answer Assemble(const StopOptions& options, const std::vector<int32_t>& ids, bool skips = true) {
  return Assemble(TextAssembler(ByteTokenizer(), Stops(options), skips), ids);
}

TEST(TextAssemblerTest, ACharacterIsShownWhenItsLastTokenCame) {
  const Answer answer = Assemble({}, Ids("a\xF0\x9F\x98\x80z"));
  EXPECT_EQ(answer.deltas, (std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "z"}));
  EXPECT_EQ(answer.tail, "");
}

TEST(TextAssemblerTest, AnIncompleteCharacterAtTheEndIsTheTail) {
  const Answer answer = Assemble({}, Ids("ab\xE2\x82"));
  EXPECT_EQ(answer.Text(), "ab");
  EXPECT_EQ(answer.tail, "\xE2\x82");
}

TEST(TextAssemblerTest, BytesThatCannotBeCompletedBecomeReplacementCharacters) {
  EXPECT_EQ(Assemble({}, Ids("\xE2\x82x\xFF\x80y")).Text(), "\uFFFDx\uFFFD\uFFFDy");
}

TEST(TextAssemblerTest, SpecialTokensHaveTextOnlyOnRequest) {
  const std::vector<int32_t> ids = {'a', kEos, kThink, 'b'};
  EXPECT_EQ(Assemble({}, ids, true).Text(), "a<think>b");
  EXPECT_EQ(Assemble({}, ids, false).Text(), "a<eos><think>b");
}

// Skipped tokens leave no trace in the bytes: the character around one is still a character.
TEST(TextAssemblerTest, ASkippedTokenInsideACharacterDoesNotBreakIt) {
  const std::vector<int32_t> ids = {0xC3, kEos, 0xA9};
  EXPECT_EQ(Assemble({}, ids, true).Text(), "\u00E9");
  EXPECT_EQ(Assemble({}, ids, false).Text(), "\uFFFD<eos>\uFFFD");
}

TEST(TextAssemblerTest, IdsWithoutATokenHaveNoText) {
  EXPECT_EQ(Assemble({}, {'a', 100'000, -1, 'b'}).Text(), "ab");
}

TEST(TextAssemblerTest, AStopIdEndsWithoutItsTextUnlessKept) {
  StopOptions options = {.stop_ids = {kThink}};
  const Answer cut = Assemble(options, {'a', kThink, 'b'});
  EXPECT_EQ(cut.Text(), "a");
  EXPECT_EQ(cut.token_count, 2);
  EXPECT_EQ(cut.stop, (StopMatch{.kind = StopMatch::Kind::kStopId, .id = kThink}));
  options.keeps_stop_in_text = true;
  EXPECT_EQ(Assemble(options, {'a', kThink, 'b'}).Text(), "a<think>");
}

TEST(TextAssemblerTest, AKeptSpecialStopFollowsTheRuleForSpecialTokens) {
  const StopOptions options = {.eos_ids = {kEos}, .keeps_stop_in_text = true};
  EXPECT_EQ(Assemble(options, {'a', kEos}, true).Text(), "a");
  EXPECT_EQ(Assemble(options, {'a', kEos}, false).Text(), "a<eos>");
}

TEST(TextAssemblerTest, AStopIdReleasesWhatWasHeldAndKeepsTheTail) {
  std::vector<int32_t> ids = Ids("ab\xE2\x82");
  ids.push_back(kEos);
  const Answer answer = Assemble({.eos_ids = {kEos}, .stop_strings = {"b\u20AC!"}}, ids);
  EXPECT_EQ(answer.Text(), "ab");
  EXPECT_EQ(answer.tail, "\xE2\x82");
}

TEST(TextAssemblerTest, TextAndTailAreTheBytesOfTheIdsHoweverTheyEnd) {
  const std::string bytes = "a\xE2\x82\xAC\xF0\x9F\x98\x80z";
  for (size_t count = 0; count <= bytes.size(); ++count) {
    std::vector<int32_t> ids = Ids(bytes.substr(0, count));
    const Answer at_length = Assemble({}, ids);
    EXPECT_EQ(at_length.Text() + at_length.tail, bytes.substr(0, count));
    ids.push_back('!');
    const Answer at_stop = Assemble({.stop_ids = {'!'}}, ids);
    EXPECT_TRUE(at_stop.stop.has_value());
    EXPECT_EQ(at_stop.Text() + at_stop.tail, bytes.substr(0, count));
  }
}

TEST(TextAssemblerTest, AStopIdWinsOverAStringThatItsTextCompletes) {
  const Answer answer =
      Assemble({.stop_ids = {kThink}, .stop_strings = {"a<think>"}}, {'a', kThink});
  EXPECT_EQ(answer.stop->kind, StopMatch::Kind::kStopId);
  EXPECT_EQ(answer.Text(), "a");
}

TEST(TextAssemblerTest, AStopStringLeavesNoTail) {
  const auto tokenizer = MakeHandmadeTokenizer({.merges = {{"!", "\xE2"}}});
  const Answer answer = Assemble(TextAssembler(tokenizer, Stops({.stop_strings = {"!"}}), true),
                                 {'a', 256, 0x82, 0xAC});
  EXPECT_EQ(answer.Text(), "a");
  EXPECT_EQ(answer.tail, "");
  EXPECT_EQ(answer.token_count, 2);
}

TEST(TextAssemblerTest, AfterAStopFurtherIdsChangeNothing) {
  TextAssembler assembler(ByteTokenizer(), Stops({.eos_ids = {kEos}}), true);
  std::string text;
  const auto stop = assembler.Feed(kEos, &text);
  ASSERT_TRUE(stop.has_value());
  EXPECT_EQ(assembler.Feed('a', &text), stop);
  EXPECT_EQ(text, "");
  EXPECT_EQ(assembler.token_count(), 1);
}

TEST(TextAssemblerTest, EarlyStopsAreTextUntilTheLeastCountIsReached) {
  const StopOptions options = {.stop_ids = {kThink}, .stop_strings = {"ab"}, .new_tokens_min = 4};
  const Answer answer = Assemble(options, {'a', 'b', kThink, 'a', 'b'});
  EXPECT_EQ(answer.Text(), "ab<think>");
  EXPECT_EQ(answer.token_count, 5);
}

// A stream that is resumed at any position, by feeding the ids before it again, goes on
// identically: in the middle of a character, of a stop string, and before the least count.
TEST(TextAssemblerTest, AResumedStreamContinuesIdenticallyAtEveryPosition) {
  std::mt19937 random(13);
  const std::vector<int32_t> alphabet = {'a',  'b',  'c',  'b',  'c',  'a',   0xF0,
                                         0x9F, 0x98, 0x80, 0xC3, 0xA9, kThink};
  const auto tokenizer = ByteTokenizer();
  int stopped = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const auto stops = Stops({.eos_ids = {kEos},
                              .stop_strings = {"abc", "b\u00E9a", "ca\U0001F600", "bb<think>"},
                              .new_tokens_min = static_cast<int64_t>(random() % 20),
                              .keeps_stop_in_text = random() % 2 == 0});
    const TextAssembler fresh(tokenizer, stops, trial % 2 == 0);
    std::vector<int32_t> ids(60);
    for (int32_t& id : ids) id = alphabet[random() % alphabet.size()];
    const Answer whole = Assemble(fresh, ids);
    stopped += whole.stop.has_value();
    for (size_t cut = 0; cut <= whole.deltas.size(); ++cut) {
      TextAssembler resumed(tokenizer, stops, trial % 2 == 0);
      Answer answer;
      for (size_t i = 0; i < whole.deltas.size(); ++i) {
        std::string delta;
        resumed.Feed(ids[i], &delta);
        answer.deltas.push_back(i < cut ? whole.deltas[i] : delta);
      }
      resumed.Finish(&answer.rest);
      answer.tail = resumed.text_tail_bytes();
      answer.stop = resumed.stop();
      answer.token_count = resumed.token_count();
      ASSERT_EQ(answer, whole) << "trial " << trial << " cut " << cut;
    }
    if (!whole.stop.has_value()) {
      const std::string bytes = *tokenizer->Decode(ids, {.skips_special_tokens = trial % 2 == 0});
      ASSERT_EQ(ReplaceInvalidUtf8(bytes), ReplaceInvalidUtf8(whole.Text() + whole.tail));
    }
  }
  EXPECT_GT(stopped, 50);
  EXPECT_LT(stopped, 350);
}

}  // namespace
}  // namespace lockstep::text
