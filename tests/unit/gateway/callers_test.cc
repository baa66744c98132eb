// Several callers of one generation: what ends it for one takes nothing from another.
#include <gtest/gtest.h>

#include <memory>

#include "tests/unit/gateway/generation_fixture.h"

namespace lockstep::gateway {
namespace {

using CallersTest = GenerationTest;

v1::SequenceDelta Aborted(int64_t begin, int32_t id) {
  v1::SequenceDelta delta = Token(begin, id, /*last=*/true);
  delta.mutable_end()->set_reason(v1::FINISH_REASON_ABORT);
  return delta;
}

TEST_F(CallersTest, WhoseTimeIsUpGetsWhatThereIsWhileItGoesOnForOthers) {
  auto generation = Make(2);
  generation->Start();
  auto hasty = std::make_shared<Watcher>(), patient = std::make_shared<Watcher>();
  generation->Subscribe(hasty, InAMinute());
  Attach(generation.get(), patient, absl::Minutes(2));
  routes_.opened[1].sequence->OnDelta(Token(0, 5, true));
  routes_.opened[0].sequence->OnDelta(Token(0, 5, false));
  clock_.Advance(absl::Seconds(61));
  generation->EndLate(absl::Seconds(5));
  ASSERT_EQ(hasty->finished, 1);
  EXPECT_EQ(hasty->finished_samples, 2);
  EXPECT_TRUE(hasty->answer->finished());
  EXPECT_TRUE(hasty->answer->TimeIsUp());
  const v1::GenerateResponse cut = hasty->answer->Response();
  EXPECT_EQ(cut.samples(0).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(cut.samples(0).token_ids().size(), 4u);
  EXPECT_EQ(cut.samples(1).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(generation->finished());
  EXPECT_TRUE(routes_.cancelled.empty());
  EXPECT_EQ(metrics_.samples[v1::FINISH_REASON_ABORT].value(), 0);

  routes_.opened[0].sequence->OnDelta(Token(1, 6, true));
  ASSERT_EQ(patient->finished, 1);
  EXPECT_EQ(patient->answer, generation);
  EXPECT_EQ(generation->completed_sample_count(), 2);
  EXPECT_EQ(hasty->finished, 1);
}

TEST_F(CallersTest, WhatRoutersEndAtADeadlineGoesOnForOneWithALaterOne) {
  for (const bool attached : {true, false}) {
    routes_.opened.clear();
    auto generation = Make(1);
    generation->Start();
    auto hasty = std::make_shared<Watcher>(), patient = std::make_shared<Watcher>();
    generation->Subscribe(hasty, InAMinute());
    if (attached) Attach(generation.get(), patient, absl::Seconds(600));
    const std::shared_ptr<RouteSequence> sequence = routes_.opened[0].sequence;
    sequence->OnEntered(7);
    sequence->OnDelta(Token(0, 5, false));
    clock_.Advance(absl::Seconds(59.9));  // The hops end it a little earlier.
    sequence->OnDelta(Aborted(1, 6));
    EXPECT_EQ(generation->finished(), !attached);
    EXPECT_EQ(hasty->finished, !attached);
    ASSERT_EQ(routes_.opened.size(), attached ? 2u : 1u);
    if (!attached) continue;
    const v1::RouteOpen& open = routes_.opened[1].open;
    EXPECT_EQ(open.sequence().deliver_output_from(), 2);
    EXPECT_EQ(open.sequence().entry_epoch(), 7u);
    EXPECT_NEAR(open.deadline_seconds(), 540.1, 0.01);
    // It has another name at the routers now.
    generation->EndEarly(v1::FINISH_REASON_PARTIAL);
    EXPECT_EQ(routes_.cancelled, std::vector<uint64_t>{1});
    EXPECT_EQ(patient->answer->Response().samples(0).token_ids().size(), 8u);
  }
}

TEST_F(CallersTest, AnAbortBeforeTheTimeIsUpEndsItForAllCallers) {
  auto generation = Make(1);
  generation->Start();
  auto hasty = std::make_shared<Watcher>(), patient = std::make_shared<Watcher>();
  generation->Subscribe(hasty, InAMinute());
  Attach(generation.get(), patient, absl::Seconds(600));
  clock_.Advance(absl::Seconds(30));
  routes_.opened[0].sequence->OnDelta(Aborted(0, 5));
  EXPECT_EQ(hasty->finished, 1);
  EXPECT_EQ(patient->finished, 1);
  EXPECT_FALSE(generation->TimeIsUp());
  EXPECT_EQ(routes_.opened.size(), 1u);
}

TEST_F(CallersTest, OneCallersWishEndsItForAllOnlyWhenNobodyElseWaitsOrComes) {
  auto generation = Make(1);
  generation->Start();
  auto first = std::make_shared<Watcher>(), second = std::make_shared<Watcher>();
  generation->Subscribe(first, InAMinute());
  ASSERT_TRUE(generation->Join(InAMinute()));  // Not subscribed yet.
  generation->EndFor(first.get(), v1::FINISH_REASON_PARTIAL);
  ASSERT_EQ(first->finished, 1);
  EXPECT_EQ(first->answer->Response().samples(0).finish_reason(), v1::FINISH_REASON_PARTIAL);
  EXPECT_FALSE(first->answer->TimeIsUp());
  clock_.Advance(absl::Seconds(50));
  generation->EndLate(/*orphan_grace=*/absl::Seconds(5));
  EXPECT_FALSE(generation->finished());
  generation->Subscribe(second, InAMinute());
  generation->EndFor(first.get(), v1::FINISH_REASON_PARTIAL);  // Waits no longer.
  EXPECT_FALSE(generation->finished());
  generation->EndFor(second.get(), v1::FINISH_REASON_PARTIAL);
  EXPECT_TRUE(generation->finished());
  EXPECT_EQ(second->answer, generation);
  EXPECT_EQ(routes_.cancelled, std::vector<uint64_t>{0});
}

TEST_F(CallersTest, OneWhoLeftAndHadMoreTimeLeavesItForItsRetry) {
  auto generation = Make(1);
  generation->Start();
  auto hasty = std::make_shared<Watcher>(), gone = std::make_shared<Watcher>();
  generation->Subscribe(hasty, InAMinute());
  Attach(generation.get(), gone, absl::Seconds(600));
  generation->Unsubscribe(gone.get());
  clock_.Advance(absl::Seconds(61));
  generation->EndLate(/*orphan_grace=*/absl::Seconds(5));
  EXPECT_EQ(hasty->finished, 1);
  EXPECT_FALSE(generation->finished());
  clock_.Advance(absl::Seconds(6));
  generation->EndLate(/*orphan_grace=*/absl::Seconds(5));
  EXPECT_TRUE(generation->finished());
}

TEST_F(CallersTest, WhoComesWhileTheTimeOfOthersRunsOutGetsARunOfItsOwn) {
  RequestTable table = Table();
  const auto make = [&]() -> absl::StatusOr<std::shared_ptr<Generation>> { return Make(2); };
  const auto first = table.FindOrMake("r", "b", {.samples = 2}, InAMinute(), make)->generation;
  first->Start();
  auto hasty = std::make_shared<Watcher>();
  first->Subscribe(hasty, InAMinute());
  clock_.Advance(absl::Seconds(59.9));
  routes_.opened[0].sequence->OnDelta(Aborted(0, 5));
  const auto second = table.FindOrMake("r", "b", {.samples = 2}, InAMinute(), make);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE(second->attached);
  EXPECT_NE(second->generation, first);
  EXPECT_EQ(hasty->finished, 1);
  EXPECT_EQ(metrics_.attached.value(), 0);
}

}  // namespace
}  // namespace lockstep::gateway
