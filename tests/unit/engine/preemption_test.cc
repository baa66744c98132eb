// Goal: with too little KV for all, everyone ends with the bits of a quiet run, the oldest always
// progresses, and no block is lost.

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::IsEmpty;

// Runs to the end. The oldest sequence without an end must gain a token, or come closer to its
// next one, in every step: it may never wait longer than its own prefill takes.
void RunAndWatchTheOldest(EngineHarness* harness, uint64_t first_ticket, uint64_t last_ticket,
                          int64_t prefill_steps_max) {
  uint64_t oldest = first_ticket;
  size_t tokens = 0;
  int64_t steps_without_token = 0;
  while (harness->RunStep()) {
    while (oldest <= last_ticket && harness->transcript(oldest).end.has_value()) {
      ++oldest;
      tokens = harness->transcript(oldest).ids.size();
      steps_without_token = 0;
    }
    const size_t now = harness->transcript(oldest).ids.size();
    steps_without_token = now > tokens ? 0 : steps_without_token + 1;
    tokens = now;
    ASSERT_LE(steps_without_token, prefill_steps_max) << "ticket " << oldest << " does not move";
  }
}

void ExpectAllEqualToAlone(EngineHarness* harness, const std::vector<SequenceStart>& starts) {
  ASSERT_THAT(harness->violations(), IsEmpty());
  for (const SequenceStart& start : starts) {
    ASSERT_EQ(Describe(harness->transcript(start.ticket.value())), Describe(RunAlone(start)))
        << "ticket " << start.ticket;
  }
}

TEST(PreemptionTest, TheYoungestLosesItsBlocksAndGoesOnWithTheSameBits) {
  EngineHarness harness({.block_count = 8});
  std::vector<SequenceStart> starts;
  for (const uint64_t ticket : {1, 2}) {
    starts.push_back(MakeStart(ticket, RandomIds(ticket, 30), 70));
    starts.back().deliver_prompt_from = 1;
    ASSERT_TRUE(harness.core().Start(starts.back()).ok());
  }
  RunAndWatchTheOldest(&harness, 1, 2, 8);
  ExpectAllEqualToAlone(&harness, starts);
  EXPECT_EQ(harness.transcript(1).end->usage.preemptions, 0) << "the oldest is never preempted";
  EXPECT_GE(harness.transcript(2).end->usage.preemptions, 1);
  EXPECT_EQ(harness.metrics().preemptions.value(), harness.transcript(2).end->usage.preemptions);
  EXPECT_EQ(harness.blocks_free(), 8);
}

TEST(PreemptionTest, ARecomputedPrefillIsCutAtSplitsAndAtItsCurrentLength) {
  EngineHarness harness({.block_count = 12, .chunk_tokens = 32, .prefix_cache = false});
  for (const uint64_t ticket : {1, 2}) {
    ASSERT_TRUE(harness.core().Start(MakeStart(ticket, RandomIds(ticket, 30), 120)).ok());
  }
  ASSERT_TRUE(harness.RunAll());
  ASSERT_THAT(harness.violations(), IsEmpty());
  bool recomputed = false;
  for (const Cut& cut : harness.cuts()) {
    if (cut.length == 30) continue;
    recomputed = true;
    EXPECT_GT(cut.length, 30) << "the plan's length grows by what was generated";
  }
  EXPECT_TRUE(recomputed);
}

// 64 samples of one long prompt where the KV holds 1.3 of it, then many short ones.
TEST(PreemptionTest, KnifeEdgeOfKvEndsAllAndPrefillsThePromptAboutOnce) {
  constexpr int64_t kPrompt = 800;
  constexpr int64_t kSamples = 64;
  EngineHarness harness({.block_count = kPrompt * 13 / 10 / 16, .chunk_tokens = 128});
  std::vector<SequenceStart> starts;
  uint64_t ticket = 0;
  while (ticket < kSamples) starts.push_back(MakeStart(++ticket, RandomIds(1, kPrompt), 40));
  while (ticket < kSamples + 500) {
    ++ticket;
    starts.push_back(MakeStart(ticket, RandomIds(ticket, 1 + ticket % 40), 1 + ticket % 20));
  }
  for (const SequenceStart& start : starts) ASSERT_TRUE(harness.core().Start(start).ok());
  RunAndWatchTheOldest(&harness, 1, ticket, kPrompt / 128 + 2);
  ExpectAllEqualToAlone(&harness, starts);
  double short_tokens = 0;
  for (size_t i = kSamples; i < starts.size(); ++i) {
    short_tokens += static_cast<double>(starts[i].prompt_ids.size());
  }
  // 800 tokens are 50 whole blocks, of which a follower computes the last one again for its logits.
  const double prompt_tokens = harness.metrics().prompt_tokens_prefilled.value() - short_tokens;
  const double recomputed = 16 * (kSamples + harness.metrics().preemptions.value());
  EXPECT_LE(prompt_tokens, kPrompt + recomputed);
  EXPECT_LT(harness.metrics().preemptions.value(), kSamples + 500);
  EXPECT_EQ(harness.blocks_free(), kPrompt * 13 / 10 / 16);
  EXPECT_EQ(harness.metrics().sequences_running.value(), 0);
  EXPECT_EQ(harness.metrics().sequences_waiting.value(), 0);
}

TEST(PreemptionTest, ASlowReaderGivesItsBlocksToOthersAndLosesNoBit) {
  EngineHarness harness({.block_count = 10});
  SequenceStart slow = MakeStart(1, RandomIds(1, 60), 60);
  slow.credit_tokens = 3;
  const SequenceStart other = MakeStart(2, RandomIds(2, 60), 60);
  ASSERT_TRUE(harness.core().Start(slow).ok());
  ASSERT_TRUE(harness.core().Start(other).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_TRUE(harness.transcript(2).end.has_value());
  harness.core().AddCredit(base::TicketId(1), 100);
  ASSERT_TRUE(harness.RunAll());
  ExpectAllEqualToAlone(&harness, {slow, other});
  EXPECT_EQ(harness.blocks_free(), 10);
}

TEST(PreemptionTest, MoreThanAnEmptyPoolHoldsIsRefusedAndExactlyThatMuchCompletes) {
  EngineHarness harness({.block_count = 4});
  EXPECT_EQ(harness.core().Start(MakeStart(1, RandomIds(1, 50), 15)).code(),
            absl::StatusCode::kInvalidArgument);
  const SequenceStart exact = MakeStart(2, RandomIds(2, 50), 14);
  ASSERT_TRUE(harness.core().Start(exact).ok());
  ASSERT_TRUE(harness.RunAll());
  ExpectAllEqualToAlone(&harness, {exact});
}

}  // namespace
}  // namespace lockstep::worker
