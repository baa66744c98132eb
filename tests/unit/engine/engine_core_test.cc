#include "services/worker/engine/engine_core.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/base/retry_advice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Runs one start on a fresh engine.
Transcript RunOne(const SequenceStart& start, const EngineHarness::Options& options = {}) {
  EngineHarness harness(options);
  const absl::Status status = harness.core().Start(start);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.violations(), IsEmpty());
  EXPECT_EQ(harness.blocks_free(), options.block_count);
  return harness.transcript(start.ticket.value());
}

TEST(EngineCoreTest, DrawsUntilMaxNewTokens) {
  const Transcript out = RunOne(MakeStart(1, RandomIds(1, 50), 20));
  EXPECT_EQ(out.token_begin, 0);
  EXPECT_THAT(out.ids, SizeIs(20));
  EXPECT_THAT(out.logprobs.raw, SizeIs(20));
  ASSERT_TRUE(out.end.has_value());
  EXPECT_EQ(out.end->reason, EndReason::kLength);
  EXPECT_EQ(out.prompt_count, 0);
}

TEST(EngineCoreTest, ChunkingDoesNotChangeOutputs) {
  const SequenceStart start = MakeStart(1, RandomIds(1, 200), 10);
  const std::string expected = Describe(RunAlone(start));
  EngineHarness harness({.split = 32, .chunk_tokens = 32});
  ASSERT_TRUE(harness.core().Start(start).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(Describe(harness.transcript(1)), expected);
  EXPECT_THAT(harness.cuts(), SizeIs(7)) << "200 tokens in chunks of 32";
  EXPECT_EQ(harness.metrics().prefill_cuts.value(), 6);
}

// Two prompts of 6000, split 2048, budget 8192: all of a and b to 2048, then the rest of b.
TEST(EngineCoreTest, ReportsTheCutsOfTheWorkedExample) {
  EngineHarness harness(
      {.block_count = 1024, .split = 2048, .chunk_tokens = 8192, .context_tokens_max = 8192});
  for (const uint64_t ticket : {1, 2}) {
    const auto start = WithPlan(MakeStart(ticket, RandomIds(ticket, 6000), 2), 2048);
    ASSERT_TRUE(harness.core().Start(start).ok());
  }
  ASSERT_TRUE(harness.RunAll());
  std::vector<std::vector<int64_t>> cuts;
  for (const Cut& cut : harness.cuts()) {
    cuts.push_back({static_cast<int64_t>(cut.ticket.value()), cut.begin, cut.end, cut.length});
  }
  EXPECT_THAT(cuts, ElementsAre(ElementsAre(1, 0, 6000, 6000), ElementsAre(2, 0, 2048, 6000),
                                ElementsAre(2, 2048, 6000, 6000)));
}

TEST(EngineCoreTest, StopKeepsTheStopIdWithItsLogprob) {
  SequenceStart start = MakeStart(1, RandomIds(1, 20), 200);
  const int32_t stop = RunAlone(start).ids[30];
  start.parameters.stop_ids = {stop};
  const Transcript out = RunOne(start);
  EXPECT_EQ(out.end->reason, EndReason::kStop);
  EXPECT_EQ(out.end->matched_stop, MatchedStop(stop));
  EXPECT_EQ(out.ids.back(), stop);
  EXPECT_EQ(out.logprobs.raw.size(), out.ids.size());
  EXPECT_EQ(std::ranges::count(out.ids, stop), 1);
}

TEST(EngineCoreTest, StopStringsMatchAcrossTokens) {
  SequenceStart start = MakeStart(1, RandomIds(1, 20), 200);
  const std::vector<int32_t> ids = RunAlone(start).ids;
  const auto tokenizer = LetterTokenizer();
  // The text around a token border, long enough to be there once.
  const std::string stop = *tokenizer->Decode(std::span(ids).subspan(40, 5));
  start.parameters.stop_strings = {"not in it", stop};
  const Transcript out = RunOne(start);
  EXPECT_EQ(out.end->reason, EndReason::kStop);
  EXPECT_EQ(out.end->matched_stop, MatchedStop(stop));
  EXPECT_THAT(out.ids, SizeIs(45));
}

TEST(EngineCoreTest, NoStopTakesEffectBeforeMinNewTokens) {
  SequenceStart start = MakeStart(1, RandomIds(1, 20), 100);
  const std::vector<int32_t> ids = RunAlone(start).ids;
  start.parameters.stop_ids = {ids[3], ids[4]};
  start.parameters.stop_strings = {*LetterTokenizer()->Decode(std::span(ids).subspan(0, 3))};
  start.parameters.min_new_tokens = 40;
  const Transcript out = RunOne(start);
  ASSERT_GT(out.ids.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_THAT(start.parameters.stop_ids, ::testing::Not(::testing::Contains(out.ids[i])));
  }
}

TEST(EngineCoreTest, TheLastTokenOfMinNewTokensIsNoStopYetAndTheNextOneMayBe) {
  SequenceStart start = MakeStart(1, RandomIds(1, 20), 100);
  const std::vector<int32_t> ids = RunAlone(start).ids;
  // A position whose id was not drawn before, so that banning it changes nothing up to there.
  size_t position = 10;
  while (std::find(ids.begin(), ids.begin() + position, ids[position]) != ids.begin() + position) {
    ++position;
  }
  start.parameters.stop_ids = {ids[position]};
  start.parameters.min_new_tokens = static_cast<int64_t>(position) + 1;
  const Transcript banned = RunOne(start);
  ASSERT_GT(banned.ids.size(), position + 1);
  EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + position, banned.ids.begin()));
  EXPECT_NE(banned.ids[position], ids[position]);
  start.parameters.min_new_tokens = static_cast<int64_t>(position);
  EXPECT_THAT(RunOne(start).ids, SizeIs(position + 1));
}

TEST(EngineCoreTest, TheStopWinsWhenTheLastTokenIsBoth) {
  SequenceStart start = MakeStart(1, RandomIds(1, 20), 100);
  const std::vector<int32_t> ids = RunAlone(start).ids;
  start.parameters.stop_ids = {ids[0]};
  start.parameters.max_new_tokens = 1;
  EXPECT_EQ(RunOne(start).end->reason, EndReason::kStop);
}

TEST(EngineCoreTest, ZeroNewTokensEndsAtOnceOrAfterThePromptLogprobs) {
  SequenceStart start = MakeStart(1, RandomIds(1, 70), 0);
  Transcript out = RunOne(start);
  EXPECT_EQ(out.end->reason, EndReason::kLength);
  EXPECT_THAT(out.ids, IsEmpty());
  start.deliver_prompt_from = 10;
  out = RunOne(start);
  EXPECT_EQ(out.prompt_begin, 10);
  EXPECT_EQ(out.prompt_count, 60);
  EXPECT_THAT(out.prompt_logprobs.raw, SizeIs(60));
  EXPECT_THAT(out.ids, IsEmpty());
}

TEST(EngineCoreTest, PromptLogprobsAreTheSameWithAWarmCache) {
  SequenceStart start = MakeStart(1, RandomIds(1, 100), 5);
  for (const int64_t from : {1, 15, 16, 17, 31, 32, 33, 64, 99, 100}) {
    start.deliver_prompt_from = from;
    const std::string expected = Describe(RunAlone(start));
    EngineHarness harness({});
    SequenceStart warm = MakeStart(2, start.prompt_ids, 5);
    ASSERT_TRUE(harness.core().Start(warm).ok());
    ASSERT_TRUE(harness.RunAll());
    ASSERT_TRUE(harness.core().Start(start).ok());
    ASSERT_TRUE(harness.RunAll());
    EXPECT_EQ(Describe(harness.transcript(1)), expected) << from;
    // Row from - 1 had to be computed, blocks before it had not.
    EXPECT_EQ(harness.transcript(1).end->usage.cached_tokens,
              std::min<int64_t>(from - 1, 99) / 16 * 16);
  }
}

TEST(EngineCoreTest, ScoringGivesWhatGenerationGave) {
  SequenceStart start = MakeStart(1, RandomIds(1, 40), 60);
  start.parameters.top_count = 3;
  start.parameters.chosen_ids = {7, 9};
  start.parameters.entropy = true;
  start.parameters.prompt_details = true;
  const Transcript generated = RunOne(start);
  SequenceStart score = start;
  score.prompt_ids.insert(score.prompt_ids.end(), generated.ids.begin(), generated.ids.end());
  score.deliver_prompt_from = 40;
  score.score_only = true;
  score.parameters.max_new_tokens = 0;
  const Transcript scored = RunOne(WithPlan(score, 32));
  EXPECT_EQ(scored.prompt_logprobs.raw, generated.logprobs.raw);
  EXPECT_EQ(scored.prompt_logprobs.scaled, generated.logprobs.scaled);
  EXPECT_EQ(scored.prompt_logprobs.entropy, generated.logprobs.entropy);
  EXPECT_EQ(scored.prompt_logprobs.top_ids, generated.logprobs.top_ids);
  EXPECT_EQ(scored.prompt_logprobs.top_logprobs, generated.logprobs.top_logprobs);
  EXPECT_EQ(scored.prompt_logprobs.chosen_logprobs, generated.logprobs.chosen_logprobs);
}

TEST(EngineCoreTest, PromptDetailsComeOnlyWhenAsked) {
  SequenceStart start = MakeStart(1, RandomIds(1, 40), 3);
  start.parameters.top_count = 2;
  start.parameters.logprobs = false;
  start.deliver_prompt_from = 1;
  const Transcript out = RunOne(start);
  EXPECT_THAT(out.prompt_logprobs.raw, SizeIs(39)) << "asked for by themselves";
  EXPECT_THAT(out.prompt_logprobs.top_ids, IsEmpty());
  EXPECT_THAT(out.logprobs.raw, IsEmpty());
  EXPECT_THAT(out.logprobs.top_ids, SizeIs(6));
}

TEST(EngineCoreTest, GeneratedIdsThatGoOnAfterAStopAreRefused) {
  EngineHarness harness({});
  SequenceStart start = MakeStart(1, {1, 2}, 10);
  start.generated_ids = {3, 4, 5};
  start.parameters.stop_ids = {4};
  const absl::Status status = harness.core().Start(WithPlan(start, 32));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("generated_ids[2]"));
}

TEST(EngineCoreTest, ARowThatIsNotFiniteEndsItsSequenceAlone) {
  EngineHarness harness({.executor = {.nan_after_id = 63}});
  std::vector<int32_t> bad = RandomIds(1, 40, 60);
  bad[39] = 63;
  const SequenceStart good = MakeStart(2, RandomIds(2, 40, 60), 5);
  SequenceStart good_biased = good;
  good_biased.parameters.logit_bias = {{.id = 63, .bias = -1e9f}};
  ASSERT_TRUE(harness.core().Start(MakeStart(1, bad, 5)).ok());
  ASSERT_TRUE(harness.core().Start(good_biased).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(harness.transcript(1).end->reason, EndReason::kError);
  EXPECT_EQ(harness.transcript(1).end->error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(harness.transcript(1).end->error.message()), HasSubstr("position 40"));
  EXPECT_EQ(Describe(harness.transcript(2)), Describe(RunAlone(good_biased)));
  EXPECT_EQ(harness.blocks_free(), 64);
}

TEST(EngineCoreTest, BanningEverythingIsTheRequestsFault) {
  SequenceStart start = MakeStart(1, {1, 2, 3}, 5);
  for (int32_t id = 0; id < 64; ++id) {
    start.parameters.logit_bias.push_back(
        {.id = id, .bias = -std::numeric_limits<float>::infinity()});
  }
  const auto expect = [&start](const std::string& message) {
    const Transcript out = RunOne(start);
    EXPECT_EQ(out.end->reason, EndReason::kError);
    EXPECT_EQ(out.end->error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(out.end->error.message()), message);
  };
  expect("sampling.logit_bias: it leaves no id to draw at position 3");
  // One is left that min_new_tokens bans, for it would stop.
  start.parameters.logit_bias.pop_back();
  start.parameters.stop_ids = {63};
  start.parameters.min_new_tokens = 1;
  expect(
      "sampling.logit_bias: with the stop ids, which stop.min_new_tokens keeps out, it leaves no "
      "id to draw at position 3");
}

TEST(EngineCoreTest, CancelGivesWhatThereIsAndFreesTheKv) {
  EngineHarness harness({});
  const SequenceStart start = MakeStart(1, RandomIds(1, 40), 100);
  ASSERT_TRUE(harness.core().Start(start).ok());
  for (int i = 0; i < 8; ++i) harness.RunStep();
  EXPECT_LT(harness.blocks_free(), 64);
  harness.core().Cancel(base::TicketId(1));
  EXPECT_EQ(harness.blocks_free(), 64) << "at once, not at the next step";
  EXPECT_FALSE(harness.RunStep());
  const Transcript& out = harness.transcript(1);
  EXPECT_EQ(out.end->reason, EndReason::kAbort);
  EXPECT_THAT(out.ids, SizeIs(8));
  EXPECT_EQ(out.logprobs.raw.size(), out.ids.size());
  harness.core().Cancel(base::TicketId(1));
  harness.core().Cancel(base::TicketId(77));
}

TEST(EngineCoreTest, ADeadlineEndsASequenceWhereverItIs) {
  EngineHarness harness({.sequences_max = 1});
  for (const uint64_t ticket : {1, 2}) {
    SequenceStart start = MakeStart(ticket, RandomIds(ticket, 20), 1000);
    start.deadline = harness.clock().Now() + absl::Milliseconds(10 * ticket);
    ASSERT_TRUE(harness.core().Start(start).ok());
  }
  EXPECT_EQ(harness.core().next_deadline(), absl::UnixEpoch() + absl::Milliseconds(10));
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(9));
  EXPECT_EQ(harness.transcript(1).end->reason, EndReason::kAbort);
  EXPECT_EQ(harness.transcript(2).end->reason, EndReason::kAbort);
  EXPECT_EQ(harness.core().next_deadline(), absl::InfiniteFuture());
}

TEST(EngineCoreTest, ASequenceWithoutCreditIsPassedOver) {
  EngineHarness harness({});
  SequenceStart slow = MakeStart(1, RandomIds(1, 20), 30);
  slow.credit_tokens = 4;
  const SequenceStart fast = MakeStart(2, RandomIds(2, 20), 30);
  ASSERT_TRUE(harness.core().Start(slow).ok());
  ASSERT_TRUE(harness.core().Start(fast).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(4));
  EXPECT_FALSE(harness.transcript(1).end.has_value());
  EXPECT_TRUE(harness.transcript(2).end.has_value());
  harness.core().AddCredit(base::TicketId(1), 100);
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(Describe(harness.transcript(1)), Describe(RunAlone(slow)));
}

TEST(EngineCoreTest, AHeldEngineKeepsItsKvAndGoesOnWithTheSameBits) {
  EngineHarness harness({});
  const SequenceStart start = MakeStart(1, RandomIds(1, 20), 30);
  ASSERT_TRUE(harness.core().Start(start).ok());
  for (int i = 0; i < 5; ++i) harness.RunStep();
  const int64_t free = harness.blocks_free();
  harness.core().SetHold(true);
  EXPECT_FALSE(harness.RunStep());
  EXPECT_TRUE(harness.core().Snapshot().idle);
  EXPECT_EQ(harness.blocks_free(), free);
  harness.core().SetHold(false);
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(Describe(harness.transcript(1)), Describe(RunAlone(start)));
}

TEST(EngineCoreTest, HandOffGivesEverySequenceBackAndRefusesNewOnes) {
  EngineHarness harness({});
  ASSERT_TRUE(harness.core().Start(MakeStart(1, RandomIds(1, 20), 30)).ok());
  for (int i = 0; i < 5; ++i) harness.RunStep();
  ASSERT_TRUE(harness.core().Start(MakeStart(2, RandomIds(2, 20), 30)).ok());
  harness.core().HandOffAll();
  EXPECT_FALSE(harness.RunStep());
  EXPECT_TRUE(harness.transcript(1).handed_off);
  EXPECT_TRUE(harness.transcript(2).handed_off);
  EXPECT_FALSE(harness.transcript(1).end.has_value());
  EXPECT_EQ(harness.blocks_free(), 64);
  EXPECT_EQ(harness.core().Start(MakeStart(3, {1}, 1)).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(EngineCoreTest, AbortsByRequestAndByEpoch) {
  EngineHarness harness({});
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) {
    SequenceStart start = MakeStart(ticket, RandomIds(ticket, 20), 30);
    start.request = base::RequestId(ticket <= 2 ? "a" : "b");
    start.entry_epoch = base::Epoch(ticket);
    ASSERT_TRUE(harness.core().Start(start).ok());
  }
  std::vector<base::RequestId> known;
  const std::vector<base::RequestId> wanted = {base::RequestId("a"), base::RequestId("x")};
  EXPECT_EQ(harness.core().AbortRequests(wanted, &known), 2);
  EXPECT_THAT(known, ElementsAre(base::RequestId("a")));
  EXPECT_EQ(harness.core().AbortOlderThan(base::Epoch(4)), 1);
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(harness.transcript(3).end->reason, EndReason::kAbort);
  EXPECT_EQ(harness.transcript(4).end->reason, EndReason::kLength);
  EXPECT_EQ(harness.metrics().sequences_ended[EndReason::kAbort].value(), 3);
}

TEST(EngineCoreTest, AFlushedCacheIsNotHit) {
  EngineHarness harness({});
  for (const uint64_t ticket : {1, 2, 3}) {
    ASSERT_TRUE(harness.core().Start(MakeStart(ticket, RandomIds(1, 64), 2)).ok());
    ASSERT_TRUE(harness.RunAll());
    if (ticket == 2) {
      EXPECT_GT(harness.core().FlushCache(std::nullopt), 0);
    }
  }
  EXPECT_EQ(harness.transcript(2).end->usage.cached_tokens, 48);
  EXPECT_EQ(harness.transcript(3).end->usage.cached_tokens, 0);
}

TEST(EngineCoreTest, ALostDeviceStopsTheEngineAndEndsNoSequence) {
  EngineHarness harness({.executor = {.fails_at_step = 3}});
  ASSERT_TRUE(harness.core().Start(MakeStart(1, RandomIds(1, 20), 30)).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_EQ(harness.core().health().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(harness.core().Snapshot().idle) << "it has work that does not move";
  EXPECT_FALSE(harness.transcript(1).end.has_value());
  EXPECT_THAT(harness.transcript(1).ids, SizeIs(3));
  EXPECT_EQ(harness.core().Start(MakeStart(2, {1}, 1)).code(), absl::StatusCode::kUnavailable);
}

TEST(EngineCoreTest, WhatTheAuditFoundIsCountedAlsoWhenItEndsTheEngine) {
  EngineHarness harness({.executor = {.fails_at_step = 3}});
  ASSERT_TRUE(harness.core().Start(MakeStart(1, RandomIds(1, 20), 30)).ok());
  ASSERT_TRUE(harness.RunAll());
  EXPECT_FALSE(harness.core().health().ok());
  EXPECT_EQ(harness.metrics().audit_rows.value(), 4);
  EXPECT_EQ(harness.metrics().audit_mismatches.value(), 1);
}

TEST(EngineCoreTest, TooManyWaitingIsRefusedWithAdviceToRetry) {
  EngineHarness harness({.waiting_max = 2});
  ASSERT_TRUE(harness.core().Start(MakeStart(1, {1}, 1)).ok());
  ASSERT_TRUE(harness.core().Start(MakeStart(2, {1}, 1)).ok());
  const absl::Status status = harness.core().Start(MakeStart(3, {1}, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(base::GetRetryAdvice(status).retryable);
  harness.RunAll();
  EXPECT_TRUE(harness.core().Start(MakeStart(3, {1}, 1)).ok());
}

TEST(EngineCoreTest, ManyRequestsLeaveNothingBehind) {
  EngineHarness harness({});
  for (uint64_t ticket = 1; ticket <= 3000; ++ticket) {
    SequenceStart start = MakeStart(ticket, RandomIds(ticket, 1 + ticket % 50), 2);
    start.cache_namespace = std::to_string(ticket);
    start.deadline = harness.clock().Now() + absl::Hours(1);
    ASSERT_TRUE(harness.core().Start(start).ok());
    if (ticket % 3 == 0) harness.core().Cancel(start.ticket);
    if (ticket % 8 != 0) continue;
    ASSERT_TRUE(harness.RunAll());
  }
  ASSERT_TRUE(harness.RunAll());
  EXPECT_THAT(harness.violations(), IsEmpty());
  EXPECT_THAT(harness.core().Snapshot().held, IsEmpty());
  EXPECT_EQ(harness.core().next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(harness.blocks_free(), 64);
  EXPECT_LE(harness.metrics().kv_blocks_cached.value(), 64);
  double ended = 0;
  for (const EndReason reason : {EndReason::kStop, EndReason::kLength, EndReason::kAbort}) {
    ended += harness.metrics().sequences_ended[reason].value();
  }
  EXPECT_EQ(ended, 3000);
}

TEST(EngineCoreTest, ContradictingOptionsStopTheStart) {
  HashExecutor executor({.block_count = 8, .block_tokens = 16});
  base::SimClock clock;
  metrics::Registry registry;
  EngineMetrics metrics(&registry);
  const EngineDeps deps = {
      .executor = &executor, .clock = &clock, .metrics = &metrics, .on_step = [](StepOutput) {}};
  const EngineOptions good = {.split_kv_size = 32,
                              .chunk_tokens = 64,
                              .sequences_max = 4,
                              .context_tokens_max = 128,
                              .waiting_max = 4,
                              .vocabulary = 64};
  EXPECT_TRUE(EngineCore::Create(good, deps).ok());
  EngineOptions bad = good;
  bad.split_kv_size = 24;
  EXPECT_THAT(std::string(EngineCore::Create(bad, deps).status().message()), HasSubstr("24"));
  bad = good;
  bad.chunk_tokens = 48;
  EXPECT_THAT(std::string(EngineCore::Create(bad, deps).status().message()), HasSubstr("48"));
}

}  // namespace
}  // namespace lockstep::worker
