// Goal: a prompt that several sequences share is computed once, and nobody's outputs tell.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::IsEmpty;

void ExpectAllEqualToAlone(EngineHarness* harness, const std::vector<SequenceStart>& starts) {
  EXPECT_THAT(harness->violations(), IsEmpty());
  for (const SequenceStart& start : starts) {
    ASSERT_EQ(Describe(harness->transcript(start.ticket.value())), Describe(RunAlone(start)))
        << "ticket " << start.ticket;
  }
}

std::vector<SequenceStart> Group(int64_t samples, int64_t prompt_tokens, int64_t max_new_tokens) {
  std::vector<SequenceStart> starts;
  for (int64_t i = 1; i <= samples; ++i) {
    starts.push_back(MakeStart(i, RandomIds(1, prompt_tokens), max_new_tokens));
  }
  return starts;
}

TEST(SharingTest, AGroupThatStartsTogetherPrefillsItsPromptOnce) {
  EngineHarness harness({.block_count = 256});
  const auto starts = Group(16, 200, 10);
  for (const SequenceStart& start : starts) ASSERT_TRUE(harness.core().Start(start).ok());
  ASSERT_TRUE(harness.RunAll());
  ExpectAllEqualToAlone(&harness, starts);
  // 200 tokens are 12 whole blocks of 16; each follower computes the 8 tokens behind them.
  EXPECT_EQ(harness.metrics().prompt_tokens_prefilled.value(), 200 + 15 * 8);
  EXPECT_EQ(harness.metrics().prefix_hit_tokens.value(), 15 * 192);
  EXPECT_EQ(harness.metrics().prefix_waits.value(), 15);
  EXPECT_EQ(harness.executor().sequences_max(), 16) << "then they decode together";
}

TEST(SharingTest, ALaterRequestWaitsForTheBlockInWorkAndOthersPassIt) {
  EngineHarness harness({.block_count = 256, .chunk_tokens = 64});
  const std::vector<int32_t> prefix = RandomIds(1, 352);
  std::vector<SequenceStart> starts = {MakeStart(1, prefix, 5)};
  ASSERT_TRUE(harness.core().Start(starts[0]).ok());
  for (int i = 0; i < 5; ++i) harness.RunStep();
  // 320 tokens are done; the next step computes the rest and has room for more. This one shares
  // 340 of them and then differs, so it wants the block up to 336.
  std::vector<int32_t> ids(prefix.begin(), prefix.begin() + 340);
  const std::vector<int32_t> own = RandomIds(9, 8);
  ids.insert(ids.end(), own.begin(), own.end());
  starts.push_back(MakeStart(2, ids, 5));
  // Shares nothing: is not held up.
  starts.push_back(MakeStart(3, RandomIds(3, 20), 5));
  ASSERT_TRUE(harness.core().Start(starts[1]).ok());
  ASSERT_TRUE(harness.core().Start(starts[2]).ok());
  harness.RunStep();
  EXPECT_EQ(harness.cuts().back().ticket, base::TicketId(3));
  ASSERT_TRUE(harness.RunAll());
  ExpectAllEqualToAlone(&harness, starts);
  EXPECT_EQ(harness.metrics().prompt_tokens_prefilled.value(), 352 + (348 - 336) + 20);
}

TEST(SharingTest, AFollowerTakesOverWhenTheLeaderIsCancelled) {
  EngineHarness harness({.chunk_tokens = 32});
  const auto starts = Group(3, 200, 4);
  for (const SequenceStart& start : starts) ASSERT_TRUE(harness.core().Start(start).ok());
  for (int i = 0; i < 2; ++i) harness.RunStep();
  harness.core().Cancel(base::TicketId(1));
  ASSERT_TRUE(harness.RunAll());
  ExpectAllEqualToAlone(&harness, {starts[1], starts[2]});
  // 64 tokens were done and stay; the second one goes on behind them.
  EXPECT_EQ(harness.metrics().prompt_tokens_prefilled.value(), 200 + 8);
}

TEST(SharingTest, WithoutThePrefixCacheEachComputesAlone) {
  for (const bool off_by_request : {false, true}) {
    EngineHarness harness({.block_count = 256, .prefix_cache = off_by_request});
    auto starts = Group(4, 100, 4);
    for (SequenceStart& start : starts) {
      start.disable_prefix_cache = off_by_request;
      ASSERT_TRUE(harness.core().Start(start).ok());
    }
    ASSERT_TRUE(harness.RunAll());
    ExpectAllEqualToAlone(&harness, starts);
    EXPECT_EQ(harness.metrics().prompt_tokens_prefilled.value(), 400);
    EXPECT_EQ(harness.metrics().kv_blocks_cached.value(), 0);
  }
}

TEST(SharingTest, NamespacesDoNotShare) {
  EngineHarness harness({.block_count = 256});
  auto starts = Group(2, 100, 4);
  starts[1].cache_namespace = "other";
  for (const SequenceStart& start : starts) ASSERT_TRUE(harness.core().Start(start).ok());
  ASSERT_TRUE(harness.RunAll());
  ExpectAllEqualToAlone(&harness, starts);
  EXPECT_EQ(harness.metrics().prefix_hit_tokens.value(), 0);
}

TEST(SharingTest, AnAnswerAsTheNextTurnsPromptHitsOverItsWholeLength) {
  EngineHarness harness({});
  const SequenceStart first = MakeStart(1, RandomIds(1, 50), 60);
  ASSERT_TRUE(harness.core().Start(first).ok());
  ASSERT_TRUE(harness.RunAll());
  std::vector<int32_t> ids = first.prompt_ids;
  const auto& answer = harness.transcript(1).ids;
  ids.insert(ids.end(), answer.begin(), answer.end());
  const std::vector<int32_t> turn = RandomIds(2, 10);
  ids.insert(ids.end(), turn.begin(), turn.end());
  const SequenceStart second = MakeStart(2, ids, 5);
  ASSERT_TRUE(harness.core().Start(second).ok());
  ASSERT_TRUE(harness.RunAll());
  ExpectAllEqualToAlone(&harness, {second});
  // 110 tokens; the KV of the very last one was never computed, blocks are whole.
  EXPECT_EQ(harness.transcript(2).end->usage.cached_tokens, 96);
}

TEST(SharingTest, PrefixesAroundBlockAndSplitGiveTheSameBits) {
  for (const int64_t shared : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65}) {
    EngineHarness harness({.chunk_tokens = 32});
    std::vector<SequenceStart> starts;
    for (const uint64_t ticket : {1, 2, 3}) {
      std::vector<int32_t> ids = RandomIds(1, shared);
      const std::vector<int32_t> own = RandomIds(10 + ticket, ticket);
      ids.insert(ids.end(), own.begin(), own.end());
      starts.push_back(MakeStart(ticket, ids, 20));
    }
    for (const SequenceStart& start : starts) {
      ASSERT_TRUE(harness.core().Start(start).ok());
      harness.RunStep();
    }
    ASSERT_TRUE(harness.RunAll());
    ExpectAllEqualToAlone(&harness, starts);
  }
}

}  // namespace
}  // namespace lockstep::worker
