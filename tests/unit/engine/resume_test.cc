// Goal: a sequence that moves to another worker, or loses its KV, goes on with the same bits from
// any position. Method: one run gives the expected transcript; then for every position the first
// part comes from one engine and the rest from another that is given {prompt, generated}.

#include <algorithm>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/engine/logprob_block.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::IsEmpty;

// Everything that has state: penalties, stop strings over token borders, min_new_tokens, noise,
// details, prompt logprobs.
SequenceStart RichStart(uint64_t ticket) {
  SequenceStart start = MakeStart(ticket, RandomIds(ticket, 45), 200);
  start.parameters.temperature = 0.7f;
  start.parameters.repetition_penalty = 1.2f;
  start.parameters.frequency_penalty = 0.3f;
  start.parameters.presence_penalty = 0.1f;
  start.parameters.logit_bias = {{.id = 3, .bias = 0.5f}, {.id = 4, .bias = -1}};
  start.parameters.top_count = 2;
  start.parameters.chosen_ids = {1, 2};
  start.parameters.entropy = true;
  start.parameters.min_new_tokens = 100;
  start.parameters.stop_ids = {11};
  start.parameters.prompt_details = true;
  start.deliver_prompt_from = 1;
  return start;
}

// The start again, ending by a stop string that the run meets late, across tokens.
SequenceStart WithStopString(SequenceStart start) {
  start.parameters.stop_ids.clear();
  const std::vector<int32_t> ids = RunAlone(start).ids;
  start.parameters.stop_strings = {*LetterTokenizer()->Decode(std::span(ids).subspan(150, 4))};
  return start;
}

// What the first worker delivered, and what the second one added.
Transcript Join(Transcript first, const Transcript& second) {
  EXPECT_EQ(second.token_begin, static_cast<int64_t>(first.ids.size()));
  first.ids.insert(first.ids.end(), second.ids.begin(), second.ids.end());
  const int64_t count = static_cast<int64_t>(second.ids.size());
  if (count > 0) {
    AppendLogprobs(second.logprobs, {.begin = 0, .end = count, .count = count}, &first.logprobs);
  }
  first.end = second.end;
  return first;
}

void ExpectResumesAtEveryPosition(const SequenceStart& start, EndReason reason) {
  const Transcript whole = RunAlone(start);
  ASSERT_EQ(whole.end->reason, reason);
  ASSERT_GT(whole.ids.size(), 100u);
  const std::string expected = Describe(whole);
  for (size_t position = 1; position <= whole.ids.size(); ++position) {
    EngineHarness first({});
    ASSERT_TRUE(first.core().Start(start).ok());
    while (first.transcript(start.ticket.value()).ids.size() < position) first.RunStep();
    Transcript delivered = first.transcript(start.ticket.value());

    SequenceStart rest = start;
    rest.generated_ids = delivered.ids;
    rest.deliver_output_from = static_cast<int64_t>(delivered.ids.size());
    rest.deliver_prompt_from = 0;
    // The new worker has the prefix in its cache for every second position.
    EngineHarness second({});
    if (position % 2 == 0) {
      ASSERT_TRUE(second.core().Start(MakeStart(99, start.prompt_ids, 1)).ok());
      ASSERT_TRUE(second.RunAll());
    }
    ASSERT_TRUE(second.core().Start(WithPlan(rest, 32)).ok());
    ASSERT_TRUE(second.RunAll());
    ASSERT_THAT(second.violations(), IsEmpty());
    ASSERT_EQ(Describe(Join(delivered, second.transcript(start.ticket.value()))), expected)
        << "resumed at " << position;
  }
}

TEST(ResumeTest, EveryPositionOfASequenceWithAStopIdGoesOnWithTheSameBits) {
  ExpectResumesAtEveryPosition(RichStart(5), EndReason::kStop);
}

TEST(ResumeTest, EveryPositionOfASequenceWithAStopStringGoesOnWithTheSameBits) {
  ExpectResumesAtEveryPosition(WithStopString(RichStart(6)), EndReason::kStop);
}

TEST(ResumeTest, EveryPositionOfASequenceThatEndsByLengthGoesOnWithTheSameBits) {
  SequenceStart start = RichStart(7);
  start.parameters.stop_ids.clear();
  ExpectResumesAtEveryPosition(start, EndReason::kLength);
}

// A trainer gives generated ids and wants their logprobs: they are the ones that drawing gave.
TEST(ResumeTest, GivenIdsAreScoredLikeDrawnOnesFromAnyPosition) {
  const SequenceStart start = RichStart(8);
  const Transcript whole = RunAlone(start);
  for (const size_t given : {1, 15, 16, 17, 50, 99, 100}) {
    for (const int64_t from : {0, 1, 14, 15, 16, 40}) {
      if (from > static_cast<int64_t>(given)) continue;
      SequenceStart rest = start;
      rest.generated_ids.assign(whole.ids.begin(), whole.ids.begin() + given);
      rest.deliver_output_from = from;
      EngineHarness harness({.chunk_tokens = 32});
      ASSERT_TRUE(harness.core().Start(WithPlan(rest, 32)).ok());
      ASSERT_TRUE(harness.RunAll());
      const Transcript& out = harness.transcript(8);
      Transcript expected = whole;
      expected.token_begin = from;
      expected.ids.erase(expected.ids.begin(), expected.ids.begin() + from);
      const int64_t count = static_cast<int64_t>(whole.ids.size());
      expected.logprobs = {};
      AppendLogprobs(whole.logprobs, {.begin = from, .end = count, .count = count},
                     &expected.logprobs);
      ASSERT_EQ(Describe(out), Describe(expected)) << given << " given, from " << from;
    }
  }
}

TEST(ResumeTest, AStopThatIsAlreadyMetEndsAfterItsScores) {
  const SequenceStart start = RichStart(5);
  const Transcript whole = RunAlone(start);
  SequenceStart rest = start;
  rest.generated_ids = whole.ids;
  rest.deliver_output_from = static_cast<int64_t>(whole.ids.size()) - 3;
  EngineHarness harness({});
  ASSERT_TRUE(harness.core().Start(WithPlan(rest, 32)).ok());
  ASSERT_TRUE(harness.RunAll());
  const Transcript& out = harness.transcript(5);
  EXPECT_EQ(out.end->reason, EndReason::kStop);
  EXPECT_EQ(out.end->matched_stop, whole.end->matched_stop);
  EXPECT_EQ(out.ids, std::vector<int32_t>(whole.ids.end() - 3, whole.ids.end()));
  EXPECT_EQ(out.logprobs.raw,
            std::vector<float>(whole.logprobs.raw.end() - 3, whole.logprobs.raw.end()));
  EXPECT_EQ(harness.metrics().tokens_generated.value(), 0);
  EXPECT_EQ(harness.blocks_free(), 64);
}

// Credit may fall below zero by what one chunk scores, never by more.
TEST(ResumeTest, GivenIdsUseCreditAChunkAtATime) {
  const SequenceStart start = RichStart(7);
  const Transcript whole = RunAlone(start);
  SequenceStart rest = start;
  rest.generated_ids.assign(whole.ids.begin(), whole.ids.begin() + 80);
  rest.credit_tokens = 1;
  EngineHarness harness({.chunk_tokens = 32});
  ASSERT_TRUE(harness.core().Start(WithPlan(rest, 32)).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.transcript(7).ids, ::testing::SizeIs(64 - 45 + 1));
  while (!harness.transcript(7).end.has_value()) {
    harness.core().AddCredit(base::TicketId(7), 32);
    ASSERT_TRUE(harness.RunAll());
  }
  EXPECT_EQ(Describe(harness.transcript(7)), Describe(whole));
}

// What a resumed sequence finds of its own generated tokens is a hit, but no part of the prompt.
TEST(ResumeTest, CachedTokensAreAtMostThePrompt) {
  EngineHarness harness({});
  SequenceStart whole = MakeStart(1, RandomIds(1, 40), 60);
  whole.parameters.stop_ids.clear();
  ASSERT_TRUE(harness.core().Start(whole).ok());
  ASSERT_TRUE(harness.RunAll());
  const Transcript& first = harness.transcript(1);
  ASSERT_EQ(first.ids.size(), 60u);
  for (const int64_t given : {3, 12, 30, 50}) {
    SequenceStart rest = whole;
    rest.ticket = base::TicketId(100 + given);
    rest.generated_ids.assign(first.ids.begin(), first.ids.begin() + given);
    rest.deliver_output_from = given;
    const double hits = harness.metrics().prefix_hit_tokens.value();
    ASSERT_TRUE(harness.core().Start(WithPlan(rest, 32)).ok());
    ASSERT_TRUE(harness.RunAll());
    const int64_t found = (40 + given - 1) / 16 * 16;
    EXPECT_EQ(harness.metrics().prefix_hit_tokens.value() - hits, found);
    EXPECT_EQ(harness.transcript(100 + given).end->usage.cached_tokens,
              std::min<int64_t>(found, 40));
  }
}

}  // namespace
}  // namespace lockstep::worker
