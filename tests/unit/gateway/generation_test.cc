#include "services/gateway/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/retry_advice.h"
#include "common/rpc/status_conversion.h"
#include "services/gateway/credit_window.h"
#include "tests/support/live_bytes.h"
#include "tests/unit/gateway/generation_fixture.h"

namespace lockstep::gateway {
namespace {

TEST_F(GenerationTest, LateSubscriberGetsEverythingFromTheBeginning) {
  auto generation = Make(1);
  generation->Start();
  routes_.opened[0].sequence->OnDelta(Token(0, 5, false));
  auto watcher = std::make_shared<Watcher>();
  generation->Subscribe(watcher, InAMinute());
  routes_.opened[0].sequence->OnDelta(Token(1, 6, true));
  EXPECT_EQ(watcher->ids.size(), 8u);
  EXPECT_EQ(watcher->finished_samples, 1);
  EXPECT_EQ(watcher->finished, 1);
  auto after = std::make_shared<Watcher>();
  Attach(generation.get(), after);
  EXPECT_EQ(after->ids, watcher->ids);
  EXPECT_EQ(after->finished, 1);
}

TEST_F(GenerationTest, GivenTokensOfOneThatEndsWhereItWaitsAreToldAndNotCountedAsGenerated) {
  auto generation = Make(1, Credit::kReader, false, "r", 10, {5, 6, 7});
  generation->Start();
  auto watcher = std::make_shared<Watcher>();
  generation->Subscribe(watcher, InAMinute());
  routes_.opened[0].sequence->OnDelta(Token(0, 5, false));
  generation->EndEarly(v1::FINISH_REASON_PARTIAL);
  EXPECT_EQ(watcher->ids.size(), 12u);
  EXPECT_EQ(watcher->finished, 1);
  EXPECT_EQ(generation->Response().samples(0).unscored_tokens(), 2);
  EXPECT_EQ(metrics_.generated_tokens.value(), 1);
  // What was cut short is no answer for one who comes later.
  EXPECT_FALSE(generation->Join(InAMinute()));
}

TEST_F(GenerationTest, LostRouterCostsBudgetAndTheLastLossEndsTheSample) {
  auto generation = Make(1);
  generation->Start();
  RouteSequence& sequence = *routes_.opened[0].sequence;
  sequence.OnDelta(Token(0, 5, false));
  for (int loss = 0; loss < 2; ++loss) {
    const auto open = sequence.BuildOpen();
    ASSERT_TRUE(open.has_value());
    EXPECT_EQ(open->sequence().deliver_output_from(), 1);
    EXPECT_EQ(open->credit_tokens(), CreditWindow(generation->context().request) - 1);
    EXPECT_EQ(open->retry_budget(), 1 - loss);
  }
  EXPECT_FALSE(sequence.BuildOpen().has_value());
  ASSERT_TRUE(generation->finished());
  EXPECT_EQ(generation->Response().samples(0).finish_reason(), v1::FINISH_REASON_ERROR);
}

TEST_F(GenerationTest, TheEpochWhenASampleEnteredGoesWithItToTheNextRouter) {
  auto generation = Make(2);
  generation->Start();
  EXPECT_EQ(routes_.opened[0].open.sequence().entry_epoch(), 0u);
  routes_.opened[0].sequence->OnEntered(7);
  for (int loss = 0; loss < 2; ++loss) {
    EXPECT_EQ(routes_.opened[0].sequence->BuildOpen()->sequence().entry_epoch(), 7u);
    EXPECT_EQ(routes_.opened[1].sequence->BuildOpen()->sequence().entry_epoch(), 0u);
  }
}

TEST_F(GenerationTest, OnlyWhatNoRouterHasEndsAsStranded) {
  auto generation = Make(3);
  generation->Start();
  routes_.opened[0].sequence->OnDelta(Token(0, 5, true));
  routes_.stranded = {0, 1};  // The first has ended before.
  EXPECT_EQ(generation->EndStranded(v1::FINISH_REASON_ABORT), 1);
  EXPECT_EQ(routes_.cancelled, std::vector<uint64_t>{1});
  EXPECT_FALSE(generation->finished());
  routes_.stranded = {2};
  EXPECT_EQ(generation->EndStranded(v1::FINISH_REASON_ABORT), 1);
  EXPECT_TRUE(generation->finished());
}

TEST_F(GenerationTest, DifferingBitsFailTheSampleAndAreCounted) {
  auto generation = Make(1);
  generation->Start();
  routes_.opened[0].sequence->OnDelta(Token(0, 5, false));
  routes_.opened[0].sequence->OnDelta(Token(0, 6, false));
  EXPECT_TRUE(generation->finished());
  EXPECT_EQ(metrics_.bit_mismatches.value(), 1);
  EXPECT_EQ(routes_.cancelled, std::vector<uint64_t>{0});
}

TEST_F(GenerationTest, CreditGrantedInAllIsWhatAReopenedSampleStillMayBring) {
  auto generation = Make(1, Credit::kReader);
  generation->Start();
  const int64_t window = CreditWindow(generation->context().request);
  EXPECT_EQ(routes_.opened[0].open.credit_tokens(), window);
  routes_.opened[0].sequence->OnDelta(Token(0, 5, false));
  EXPECT_EQ(routes_.opened[0].sequence->TakeCredit(), 0);
  generation->Grant(0, 3);
  EXPECT_EQ(routes_.credit, 3);
  EXPECT_EQ(routes_.opened[0].sequence->BuildOpen()->credit_tokens(), window - 1 + 3);
}

TEST_F(GenerationTest, NoMoreThanAWindowOfAnAnswerIsUnderWayAndHalfAWindowIsGrantedAtOnce) {
  constexpr int64_t kTokens = 3000;
  auto generation = Make(1, Credit::kLedger, false, "r", kTokens);
  generation->Start();
  const int64_t window = CreditWindow(generation->context().request);
  ASSERT_LT(window, kTokens / 4);
  RouteSequence& sequence = *routes_.opened[0].sequence;
  int64_t granted = routes_.opened[0].open.credit_tokens();
  for (int64_t position = 0; position < kTokens; ++position) {
    ASSERT_GT(granted, position) << "it would stop";
    sequence.OnDelta(Token(position, 5, position + 1 == kTokens));
    if (const int64_t tokens = sequence.TakeCredit(); tokens > 0) {
      EXPECT_GE(tokens, window / 2);
      granted += tokens;
    }
    ASSERT_LE(granted - position - 1, window);
  }
  EXPECT_TRUE(generation->finished());
}

TEST_F(GenerationTest, AWholeAnswerDoesNotWaitForTheStreamItAttachedTo) {
  auto generation = Make(1, Credit::kReader, false, "r", 1000);
  generation->Start();
  const int64_t window = CreditWindow(generation->context().request);
  for (int64_t i = 0; i < window; ++i) routes_.opened[0].sequence->OnDelta(Token(i, 5, false));
  EXPECT_EQ(routes_.opened[0].sequence->TakeCredit(), 0);
  generation->LetLedgerGrant();
  EXPECT_EQ(routes_.credit, window);
  // Whoever reads on slowly adds nothing to it.
  generation->Grant(0, 7);
  EXPECT_EQ(routes_.credit, window);
}

TEST_F(GenerationTest, NobodyCanAskAgainForAMintedIdSoItEndsWithItsClient) {
  for (const bool minted : {true, false}) {
    auto generation = Make(1, Credit::kLedger, minted);
    generation->Start();
    auto watcher = std::make_shared<Watcher>();
    generation->Subscribe(watcher, InAMinute());
    generation->Unsubscribe(watcher.get());
    EXPECT_EQ(generation->finished(), minted);
  }
}

TEST_F(GenerationTest, TableRefusesMorePromptBytesThanItMayHold) {
  RequestTable table({.result_ttl = absl::Seconds(10),
                      .orphan_grace = absl::Seconds(5),
                      .result_bytes_max = 1 << 20,
                      .sequences_max = 100,
                      .prompt_bytes_max = 1000},
                     &clock_, &metrics_, logger_);
  const auto ask = [&](const char* id, int64_t bytes) {
    const auto make = [&] { return Make(1, Credit::kLedger, /*minted=*/false, id); };
    return table.FindOrMake(id, "b", {.samples = 1, .prompt_bytes = bytes}, InAMinute(), make);
  };
  // Larger than all there is: it has to run some time.
  const auto large = ask("large", 5000);
  ASSERT_TRUE(large.ok());
  large->generation->Start();
  const absl::Status refused = ask("small", 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("1 more bytes, 5000 are in work"));
  EXPECT_GT(base::GetRetryAdvice(refused).delay, absl::ZeroDuration());
  EXPECT_TRUE(ask("large", 5000)->attached);

  for (auto& item : routes_.opened) item.sequence->OnDelta(Token(0, 5, true));
  table.Sweep();
  EXPECT_EQ(metrics_.prompt_bytes.value(), 0);
  EXPECT_TRUE(ask("a", 600).ok());
  EXPECT_EQ(ask("b", 401).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ask("c", 400).ok());
  EXPECT_EQ(metrics_.prompt_bytes.value(), 1000);
}

TEST_F(GenerationTest, TableAttachesEqualBodiesAndRefusesOthers) {
  RequestTable table({.result_ttl = absl::Seconds(10),
                      .orphan_grace = absl::Seconds(5),
                      .result_bytes_max = 1 << 20,
                      .sequences_max = 3},
                     &clock_, &metrics_, logger_);
  const auto make = [&]() -> absl::StatusOr<std::shared_ptr<Generation>> { return Make(2); };
  const auto first = table.FindOrMake("r", "body", {.samples = 2}, InAMinute(), make);
  ASSERT_TRUE(first.ok());
  first->generation->Start();
  const auto again = table.FindOrMake("r", "body", {.samples = 2}, InAMinute(), make);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->attached);
  EXPECT_EQ(again->generation, first->generation);
  EXPECT_EQ(table.FindOrMake("r", "other", {.samples = 2}, InAMinute(), make).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(table.FindOrMake("s", "body", {.samples = 2}, InAMinute(), make).status().code(),
            absl::StatusCode::kResourceExhausted);

  for (auto& item : routes_.opened) item.sequence->OnDelta(Token(0, 5, true));
  table.Sweep();
  EXPECT_TRUE(table.FindOrMake("r", "body", {.samples = 2}, InAMinute(), make)->attached);
  clock_.Advance(absl::Seconds(11));
  table.Sweep();
  EXPECT_EQ(table.Find("r"), nullptr);
}

TEST_F(GenerationTest, KeptAnswersAreBoundedByTheMemoryTheyHold) {
  constexpr int64_t kBytesMax = 2 << 20;
  RequestTable table({.result_ttl = absl::Seconds(1000),
                      .orphan_grace = absl::Seconds(5),
                      .result_bytes_max = kBytesMax,
                      .sequences_max = 10},
                     &clock_, &metrics_, logger_);
  const int64_t before = testing::LiveBytes();
  if (before == 0) GTEST_SKIP() << "this allocator does not tell what is in use";
  int64_t held_max = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string id = absl::StrCat("request with a name ", i);
    const auto found = table.FindOrMake(id, "body", {.samples = 1}, InAMinute(),
                                        [&] { return Make(1, Credit::kLedger, false, id); });
    found->generation->Start();
    routes_.opened[0].sequence->OnDelta(Token(0, 5, true));
    routes_.opened.clear();
    table.Sweep();
    held_max = std::max(held_max, testing::LiveBytes() - before);
  }
  EXPECT_LE(metrics_.kept_bytes.value(), static_cast<double>(kBytesMax));
  EXPECT_GT(metrics_.kept_bytes.value(), 0.9 * kBytesMax);
  EXPECT_LT(held_max, kBytesMax);
  EXPECT_GT(held_max, kBytesMax / 3);
  EXPECT_NE(table.Find("request with a name 4999"), nullptr);
  EXPECT_EQ(table.Find("request with a name 0"), nullptr);
}

TEST_F(GenerationTest, SettledRequestMakesRoomAtOnce) {
  RequestTable table({.result_ttl = absl::Seconds(1000),
                      .orphan_grace = absl::Seconds(5),
                      .result_bytes_max = 1 << 20,
                      .sequences_max = 1},
                     &clock_, &metrics_, logger_);
  const auto make = [&] { return Make(1, Credit::kLedger, /*minted=*/true); };
  const auto first = table.FindOrMake("r", "b", {.samples = 1}, InAMinute(), make)->generation;
  first->Start();
  table.Settle(*first);
  EXPECT_EQ(table.Find("r"), first);
  routes_.opened[0].sequence->OnDelta(Token(0, 5, true));
  routes_.opened.clear();
  table.Settle(*first);
  EXPECT_EQ(table.Find("r"), nullptr);
  const auto second = table.FindOrMake("r", "b", {.samples = 1}, InAMinute(), make);
  ASSERT_TRUE(second.ok());
  // The name has another owner now.
  table.Settle(*first);
  EXPECT_EQ(table.Find("r"), second->generation);
  EXPECT_EQ(first.use_count(), 1);
}

TEST_F(GenerationTest, DeadlineAndOrphanGraceEndARequest) {
  RequestTable table = Table();
  const auto make = [&]() -> absl::StatusOr<std::shared_ptr<Generation>> { return Make(1); };
  const auto ask = [&](const char* id) {
    return table.FindOrMake(id, "b", {.samples = 1}, InAMinute(), make)->generation;
  };
  const auto orphan = ask("orphan");
  const auto watched = ask("watched");
  orphan->Start();
  watched->Start();
  watched->Subscribe(std::make_shared<Watcher>(), InAMinute());
  auto gone = std::make_shared<Watcher>();
  orphan->Subscribe(gone, InAMinute());
  orphan->Unsubscribe(gone.get());
  clock_.Advance(absl::Seconds(6));
  table.Sweep();
  EXPECT_TRUE(orphan->finished());
  EXPECT_FALSE(watched->finished());
  clock_.Advance(absl::Seconds(60));
  table.Sweep();
  EXPECT_TRUE(watched->finished());
}

v1::SequenceDelta Failure() {
  v1::SequenceDelta delta;
  delta.mutable_end()->set_reason(v1::FINISH_REASON_ERROR);
  *delta.mutable_end()->mutable_error() = rpc::ToErrorDetail(absl::InternalError("worker says no"));
  return delta;
}

TEST_F(GenerationTest, FailureOfItsOnlySampleIsTheRequestsOwn) {
  const auto one = Make(1);
  one->Start();
  routes_.opened[0].sequence->OnDelta(Failure());
  ASSERT_TRUE(one->finished());
  EXPECT_EQ(one->Outcome().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(one->Outcome().message(), "worker says no");

  const auto two = Make(2);
  two->Start();
  routes_.opened[1].sequence->OnDelta(Failure());
  routes_.opened[2].sequence->OnDelta(Token(0, 5, true));
  ASSERT_TRUE(two->finished());
  EXPECT_TRUE(two->Outcome().ok());
}

}  // namespace
}  // namespace lockstep::gateway
