// Goal: an engine that launches a step before it knows the results of the one before gives what
// one that waits gives, and counts nothing that it has to drop. Method: a device that says it is
// asynchronous, and the same starts alone on one that is not.

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

EngineHarness::Options Ahead(EngineHarness::Options options = {}) {
  options.executor.asynchronous = true;
  return options;
}

// Rows that were drawn and never delivered.
int64_t Dropped(EngineHarness& harness) {
  return harness.executor().draws() -
         static_cast<int64_t>(harness.metrics().tokens_generated.value());
}

void ExpectSameAsAlone(EngineHarness& harness, const SequenceStart& start) {
  EXPECT_EQ(Describe(harness.transcript(start.ticket.value())), Describe(RunAlone(start)))
      << "ticket " << start.ticket.value();
}

TEST(RunAheadTest, AStepIsLaunchedBeforeTheResultsOfTheOneBefore) {
  EngineHarness harness(Ahead());
  ASSERT_TRUE(harness.core().Start(MakeStart(1, RandomIds(1, 20), 10)).ok());
  ASSERT_TRUE(harness.RunStep());
  EXPECT_EQ(harness.executor().steps(), 1);
  EXPECT_THAT(harness.transcript(1).ids, IsEmpty());
  ASSERT_TRUE(harness.RunStep());
  EXPECT_EQ(harness.executor().steps(), 2);
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(1));
}

TEST(RunAheadTest, LengthsAreKnownInAdvanceSoNothingIsDropped) {
  EngineHarness harness(Ahead());
  const SequenceStart start = MakeStart(1, RandomIds(1, 20), 40);
  ASSERT_TRUE(harness.core().Start(start).ok());
  ASSERT_TRUE(harness.RunAll());
  ExpectSameAsAlone(harness, start);
  EXPECT_EQ(harness.executor().rows_drawn_by(), 39);
  EXPECT_EQ(Dropped(harness), 0);
}

TEST(RunAheadTest, AStopThatIsSeenLateLeavesNoTrace) {
  SequenceStart by_id = MakeStart(1, RandomIds(1, 20), 200);
  by_id.parameters.stop_ids = {RunAlone(by_id).ids[30]};
  SequenceStart by_string = MakeStart(2, RandomIds(2, 20), 200);
  const std::vector<int32_t> ids = RunAlone(by_string).ids;
  by_string.parameters.stop_strings = {*LetterTokenizer()->Decode(std::span(ids).subspan(40, 5))};
  for (const SequenceStart& start : {by_id, by_string}) {
    EngineHarness harness(Ahead());
    const int64_t blocks = harness.blocks_free();
    ASSERT_TRUE(harness.core().Start(start).ok());
    ASSERT_TRUE(harness.RunAll());
    ExpectSameAsAlone(harness, start);
    EXPECT_EQ(Dropped(harness), 1);
    EXPECT_EQ(harness.blocks_free(), blocks);
    EXPECT_THAT(harness.violations(), IsEmpty());
    // Only blocks whose tokens are all its own are known to the cache.
    const size_t tokens =
        start.prompt_ids.size() + harness.transcript(start.ticket.value()).ids.size();
    EXPECT_EQ(harness.metrics().kv_blocks_cached.value(), static_cast<double>((tokens - 1) / 16));
  }
}

TEST(RunAheadTest, BlocksOfALateRowServeOthersAtOnce) {
  // Stops all the time in a pool that is always full.
  EngineHarness harness(Ahead({.block_count = 12}));
  std::vector<SequenceStart> starts;
  for (uint64_t ticket = 1; ticket <= 40; ++ticket) {
    SequenceStart start = MakeStart(ticket, RandomIds(ticket, 10 + ticket), 60);
    start.parameters.stop_ids = {1, 2, 3, 4};
    ASSERT_TRUE(harness.core().Start(start).ok());
    starts.push_back(std::move(start));
  }
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.violations(), IsEmpty());
  EXPECT_GT(Dropped(harness), 20);
  for (const SequenceStart& start : starts) ExpectSameAsAlone(harness, start);
}

TEST(RunAheadTest, PenaltiesCountIdsThatAreStillBeingDrawn) {
  EngineHarness harness(Ahead());
  SequenceStart start = MakeStart(1, RandomIds(1, 20), 60);
  start.parameters.repetition_penalty = 1.3f;
  start.parameters.frequency_penalty = 0.5f;
  const SequenceStart other = MakeStart(2, RandomIds(2, 20), 60);
  ASSERT_TRUE(harness.core().Start(start).ok());
  ASSERT_TRUE(harness.core().Start(other).ok());
  ASSERT_TRUE(harness.RunAll());
  ExpectSameAsAlone(harness, start);
  ExpectSameAsAlone(harness, other);
  EXPECT_EQ(harness.executor().rows_drawn_by(), 2 * 59);
}

TEST(RunAheadTest, CreditIsUsedToTheTokenAndNotExceeded) {
  EngineHarness harness(Ahead());
  SequenceStart start = MakeStart(1, RandomIds(1, 20), 30);
  start.credit_tokens = 7;
  ASSERT_TRUE(harness.core().Start(start).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(7));
  harness.core().AddCredit(start.ticket, 3);
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(10));
  harness.core().AddCredit(start.ticket, 100);
  ASSERT_TRUE(harness.RunAll());
  ExpectSameAsAlone(harness, start);
  EXPECT_EQ(Dropped(harness), 0);
}

TEST(RunAheadTest, ACancelDropsWhatIsInFlight) {
  EngineHarness harness(Ahead({.block_count = 8, .prefix_cache = false}));
  const int64_t blocks = harness.blocks_free();
  const SequenceStart start = MakeStart(1, RandomIds(1, 40), 60);
  ASSERT_TRUE(harness.core().Start(start).ok());
  for (int step = 0; step < 6; ++step) ASSERT_TRUE(harness.RunStep());
  harness.core().Cancel(start.ticket);
  EXPECT_EQ(harness.blocks_free(), blocks);
  const SequenceStart next = MakeStart(2, RandomIds(2, 60), 50);
  ASSERT_TRUE(harness.core().Start(next).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.violations(), IsEmpty());
  const Transcript& cancelled = harness.transcript(1);
  EXPECT_EQ(cancelled.end->reason, EndReason::kAbort);
  EXPECT_THAT(cancelled.ids, SizeIs(5));
  ExpectSameAsAlone(harness, next);
}

TEST(RunAheadTest, AHoldDeliversNothingMoreAndLosesNothing) {
  EngineHarness harness(Ahead());
  const SequenceStart start = MakeStart(1, RandomIds(1, 20), 20);
  ASSERT_TRUE(harness.core().Start(start).ok());
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(harness.RunStep());
  harness.core().SetHold(true);
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(5));
  EXPECT_FALSE(harness.RunStep());
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(5));
  harness.core().SetHold(false);
  ASSERT_TRUE(harness.RunAll());
  ExpectSameAsAlone(harness, start);
}

TEST(RunAheadTest, APreemptedSequenceKeepsTheTokenThatWasInFlight) {
  EngineHarness harness(Ahead({.block_count = 8}));
  std::vector<SequenceStart> starts;
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) {
    starts.push_back(MakeStart(ticket, RandomIds(ticket, 20), 60));
    ASSERT_TRUE(harness.core().Start(starts.back()).ok());
  }
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.violations(), IsEmpty());
  EXPECT_GT(harness.metrics().preemptions.value(), 0);
  EXPECT_EQ(Dropped(harness), 0);
  for (const SequenceStart& start : starts) ExpectSameAsAlone(harness, start);
}

TEST(RunAheadTest, ARowThatFailsTakesItsLateRowAlongAndNoNeighbour) {
  const SequenceStart bad = MakeStart(1, RandomIds(1, 20), 60);
  const int32_t nan_id = RunAlone(bad).ids[10];
  EngineHarness::Options options = Ahead();
  options.executor.nan_after_id = nan_id;
  EngineHarness harness(options);
  SequenceStart good = MakeStart(2, {1, 2, 3}, 60);
  good.parameters.logit_bias = {{.id = nan_id, .bias = -1e30f}};
  ASSERT_TRUE(harness.core().Start(bad).ok());
  ASSERT_TRUE(harness.core().Start(good).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(harness.transcript(1).end->reason, EndReason::kError);
  EXPECT_LE(harness.transcript(1).ids.size(), size_t{11});
  ExpectSameAsAlone(harness, good);
}

TEST(RunAheadTest, AChunkThatFailsInFlightIsNobodysPrefix) {
  std::vector<int32_t> prompt = RandomIds(1, 100, /*vocabulary=*/60);
  prompt[40] = 63;
  EngineHarness::Options options = Ahead({.chunk_tokens = 32});
  options.executor.nan_after_id = 63;
  EngineHarness harness(options);
  for (uint64_t ticket = 1; ticket <= 2; ++ticket) {
    ASSERT_TRUE(harness.core().Start(MakeStart(ticket, prompt, 5)).ok());
    ASSERT_TRUE(harness.RunAll());
    EXPECT_EQ(harness.transcript(ticket).end->reason, EndReason::kError) << "ticket " << ticket;
  }
}

TEST(RunAheadTest, ChunksInFlightAreNotComputedTwice) {
  EngineHarness harness(Ahead({.block_count = 256, .chunk_tokens = 32}));
  const std::vector<int32_t> prompt = RandomIds(1, 200);
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) {
    ASSERT_TRUE(harness.core().Start(MakeStart(ticket, prompt, 5)).ok());
  }
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.violations(), IsEmpty());
  // The last block is not whole, or holds the row that is wanted, and each computes it.
  EXPECT_LE(harness.metrics().tokens_prefilled.value(), 200 + 3 * 16);
}

}  // namespace
}  // namespace lockstep::worker
