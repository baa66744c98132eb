// Results, failover and quarantine: the half of the core that faces workers.

#include "services/router/router_core.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/router/core_harness.h"

namespace lockstep::router {
namespace {

TEST(RouterCoreTest, LostWorkerMovesItsSequenceWithAllThatIsKnown) {
  CoreHarness h;
  h.Connect();
  WorkerStart start = h.Run(1, Key("a"));
  h.Frame(Key("a"), {MakeDelta(start.ticket.id, 0, {4, 5, 6})});
  h.core.TakeActions();
  h.core.WorkerLost(Key("a"));
  RouterActions moved = h.core.TakeActions();
  EXPECT_EQ(moved.released_tickets, (std::vector<base::TicketId>{start.ticket.id}));
  EXPECT_EQ(moved.closed_streams, (std::vector<StreamId>{h.streams[Key("a")]}));
  ASSERT_EQ(moved.admits.size(), 1u);
  EXPECT_EQ(moved.admits[0].candidates, (std::vector<WorkerKey>{Key("b")}));
  EXPECT_EQ(moved.admits[0].length, 6);
  EXPECT_EQ(moved.admits[0].new_tokens_max, 97);
  EXPECT_EQ(moved.admits[0].attempt, 1);
  h.core.TicketGranted(moved.admits[0].handle, h.TicketFor(Key("b"), 2));
  const RouterActions started = h.core.TakeActions();
  const WorkerStart& second = started.workers.at(0).starts.at(0);
  ASSERT_NE(second.generated_ids, nullptr);
  EXPECT_EQ(*second.generated_ids, (std::vector<uint32_t>{4, 5, 6}));
  EXPECT_EQ(second.deliver_output_from, 3);
  EXPECT_EQ(second.credit_tokens, 47) << "granted less delivered";
  h.streams[Key("b")] = started.workers[0].stream;
  h.Frame(Key("b"), {WithEnd(MakeDelta(second.ticket.id, 3, {7}), Stop())});
  const std::vector<SequenceEnd> ends = Ends(h.core.TakeActions());
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].resumptions, 1);
  EXPECT_EQ(h.metrics.resumptions[FailoverCause::kLeaseLost].value(), 1);
}

TEST(RouterCoreTest, DeathAtEveryPositionContinuesWithoutGapOrRepetition) {
  constexpr int64_t kLength = 40;
  for (int64_t dead_at = 0; dead_at < kLength; ++dead_at) {
    CoreHarness h;
    h.Connect();
    std::vector<uint32_t> received;
    const auto collect = [&] {
      const RouterActions actions = h.core.TakeActions();
      for (const GatewayDelta& item : actions.deltas) {
        if (item.delta.token_ids.empty()) continue;
        EXPECT_EQ(item.delta.token_begin, static_cast<int64_t>(received.size()));
        for (const uint32_t id : UnpackIds(item.delta.token_ids)) received.push_back(id);
      }
      return Ends(actions).size();
    };
    WorkerStart start = h.Run(1, Key("a"));
    for (int64_t i = 0; i < dead_at; ++i) {
      h.Frame(Key("a"), {MakeDelta(start.ticket.id, i, {static_cast<uint32_t>(100 + i)})});
    }
    collect();
    h.core.WorkerLost(Key("a"));
    start = h.GrantOnly(Key("b"), 2);
    EXPECT_EQ(start.deliver_output_from, dead_at);
    const std::vector<uint32_t> known =
        start.generated_ids == nullptr ? std::vector<uint32_t>() : *start.generated_ids;
    EXPECT_EQ(known, received);
    for (int64_t i = dead_at; i < kLength; ++i) {
      SequenceDelta delta = MakeDelta(start.ticket.id, i, {static_cast<uint32_t>(100 + i)});
      if (i + 1 == kLength) delta = WithEnd(delta, Stop());
      h.Frame(Key("b"), {delta});
    }
    EXPECT_EQ(collect(), 1u);
    EXPECT_EQ(received.size(), static_cast<size_t>(kLength));
  }
}

TEST(RouterCoreTest, EndBeforeAllPromptLogprobsIsAGap) {
  CoreHarness h;
  h.Connect();
  auto spec = h.Spec("scored");
  spec->deliver_prompt_from = 1;
  h.Open(1, spec);
  const WorkerStart start = h.GrantOnly(Key("a"));
  h.Frame(Key("a"), {WithEnd(MakeDelta(start.ticket.id, 0, {4}), Stop())});
  const RouterActions actions = h.core.TakeActions();
  EXPECT_TRUE(Ends(actions).empty());
  ASSERT_EQ(actions.admits.size(), 1u);
  EXPECT_EQ(h.metrics.resumptions[FailoverCause::kBadFrame].value(), 1);
}

TEST(RouterCoreTest, ZombieOfAnOldAttemptIsDroppedAndToldToStop) {
  CoreHarness h;
  h.Connect();
  const WorkerStart first = h.Run(1, Key("a"));
  h.core.FrameCame(h.streams[Key("a")], {.hand_offs = {first.ticket.id}});
  const WorkerStart second = h.GrantOnly(Key("b"), 2);
  h.Frame(Key("a"), {MakeDelta(first.ticket.id, 0, {66})});
  const RouterActions actions = h.core.TakeActions();
  EXPECT_TRUE(actions.deltas.empty());
  ASSERT_EQ(actions.workers.size(), 1u);
  EXPECT_EQ(actions.workers[0].cancels, (std::vector<base::TicketId>{first.ticket.id}));
  EXPECT_EQ(h.metrics.stale_deltas.value(), 1);
  h.Frame(Key("b"), {WithEnd(MakeDelta(second.ticket.id, 0, {4}), Stop())});
  EXPECT_EQ(Ends(h.core.TakeActions()).size(), 1u);
}

TEST(RouterCoreTest, AnotherWorkerCannotSpeakForATicket) {
  CoreHarness h;
  h.Connect();
  const WorkerStart a = h.Run(1, Key("a"));
  h.Run(2, Key("b"));
  h.Frame(Key("b"), {WithEnd(MakeDelta(a.ticket.id, 0, {66}), Stop())});
  EXPECT_TRUE(h.core.TakeActions().deltas.empty());
  EXPECT_EQ(h.core.sequence_count(), 2u);
}

TEST(RouterCoreTest, HandOffMovesWithoutChargeAndAvoidsTheDrainingWorker) {
  CoreHarness h;
  h.Connect();
  WorkerStart start = h.Run(1, Key("a"));
  for (int64_t i = 0; i < 10; ++i) {  // More often than the budget allows.
    const WorkerKey from = start.ticket.worker;
    const WorkerKey to = Key("n" + std::to_string(i));
    h.core.FrameCame(h.streams[from], {.hand_offs = {start.ticket.id}});
    h.core.ApplySnapshot({{.worker = to, .address = "x"}, State("z")});
    RouterActions actions = h.core.TakeActions();
    ASSERT_FALSE(actions.admits.empty());
    for (const WorkerKey& key : actions.admits.back().candidates) EXPECT_NE(key, from);
    h.core.TicketGranted(actions.admits.back().handle, h.TicketFor(to, i + 2));
    actions = h.core.TakeActions();
    ASSERT_EQ(actions.workers.size(), 1u);
    h.streams[to] = actions.workers[0].stream;
    start = actions.workers[0].starts.at(0);
  }
  EXPECT_EQ(h.core.sequence_count(), 1u);
}

TEST(RouterCoreTest, BrokenStreamMovesAtOnceAndKeepsTheWorkerOut) {
  CoreHarness h;
  h.Connect();
  h.Run(1, Key("a"));
  h.core.StreamClosed(h.streams[Key("a")], absl::UnavailableError("reset"));
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(actions.admits.size(), 1u);
  EXPECT_EQ(actions.admits[0].candidates, (std::vector<WorkerKey>{Key("b")}));
  EXPECT_EQ(h.metrics.resumptions[FailoverCause::kStreamBroken].value(), 1);
}

TEST(RouterCoreTest, OnlyWorkerIsTriedAgainAfterItsPause) {
  CoreHarness h;
  h.Connect({State("a")});
  h.Run(1, Key("a"));
  h.core.StreamClosed(h.streams[Key("a")], absl::UnavailableError("reset"));
  EXPECT_TRUE(h.core.TakeActions().admits.empty());
  EXPECT_EQ(h.core.NextWakeup(), h.clock.Now() + absl::Milliseconds(100));
  h.Advance(absl::Milliseconds(100));
  EXPECT_EQ(h.core.TakeActions().admits.size(), 1u);
}

TEST(RouterCoreTest, RetryBudgetEndsASequenceThatNeverGetsOn) {
  CoreHarness h;
  h.Connect();
  WorkerStart start = h.Run(1, Key("a"));
  int64_t refused = 0;
  while (h.core.sequence_count() > 0 && refused < 10) {
    ++refused;
    h.core.FrameCame(h.streams[Key("a")],
                     {.refusals = {{start.ticket.id, absl::FailedPreconditionError("stale")}}});
    h.Advance(absl::Seconds(2));
    if (h.core.sequence_count() == 0) break;
    start = h.GrantOnly(Key("a"), refused + 1);
  }
  EXPECT_EQ(refused, 4) << "three retries, as the budget says";
  const std::vector<SequenceEnd> ends = Ends(h.core.TakeActions());
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].error.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(h.metrics.refusals[absl::StatusCode::kFailedPrecondition].value(), 4);
}

TEST(RouterCoreTest, ResultsRefillTheBudget) {
  CoreHarness h;
  h.Connect();
  WorkerStart start = h.Run(1, Key("a"));
  for (int64_t i = 0; i < 20; ++i) {
    h.Frame(Key("a"), {MakeDelta(start.ticket.id, i, {4})});
    h.core.StreamClosed(h.streams[Key("a")], absl::UnavailableError("reset"));
    h.Advance(absl::Seconds(1));
    start = h.GrantOnly(Key("a"), i + 2);
  }
  EXPECT_EQ(h.core.sequence_count(), 1u);
}

TEST(RouterCoreTest, InvalidArgumentFailsTheSequence) {
  CoreHarness h;
  h.Connect();
  const WorkerStart start = h.Run(1, Key("a"));
  h.core.FrameCame(h.streams[Key("a")],
                   {.refusals = {{start.ticket.id, absl::InvalidArgumentError("plan")}}});
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(Ends(actions).size(), 1u);
  EXPECT_EQ(Ends(actions)[0].error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(actions.released_tickets.size(), 1u);
}

TEST(RouterCoreTest, FullWorkerIsTriedAgainLaterWithoutCharge) {
  CoreHarness h;
  h.Connect();
  WorkerStart start = h.Run(1, Key("a"));
  for (int64_t i = 0; i < 10; ++i) {
    h.core.FrameCame(h.streams[Key("a")],
                     {.refusals = {{start.ticket.id, absl::ResourceExhaustedError("no room")}}});
    EXPECT_TRUE(h.core.TakeActions().admits.empty()) << "not at once";
    h.Advance(absl::Seconds(1));
    start = h.GrantOnly(Key("a"), i + 2);
  }
  EXPECT_EQ(h.core.sequence_count(), 1u);
}

TEST(RouterCoreTest, GapFailsTheAttemptNotTheSequence) {
  CoreHarness h;
  h.Connect();
  const WorkerStart start = h.Run(1, Key("a"));
  h.Frame(Key("a"), {MakeDelta(start.ticket.id, 1, {4})});
  const RouterActions actions = h.core.TakeActions();
  EXPECT_TRUE(actions.deltas.empty());
  ASSERT_EQ(actions.workers.size(), 1u);
  EXPECT_EQ(actions.workers[0].cancels, (std::vector<base::TicketId>{start.ticket.id}));
  EXPECT_EQ(actions.admits.size(), 1u);
  EXPECT_EQ(h.metrics.resumptions[FailoverCause::kBadFrame].value(), 1);
}

TEST(RouterCoreTest, OtherBitsOnASecondAttemptFailTheSequenceLoudly) {
  CoreHarness h;
  h.Connect();
  const WorkerStart first = h.Run(1, Key("a"));
  h.Frame(Key("a"), {MakeDelta(first.ticket.id, 0, {4, 5})});
  h.core.TakeActions();
  h.core.WorkerLost(Key("a"));
  const WorkerStart second = h.GrantOnly(Key("b"), 2);
  SequenceDelta differs = MakeDelta(second.ticket.id, 1, {5, 6});
  differs.logprobs.raw[0] ^= 1;
  h.Frame(Key("b"), {differs});
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(Ends(actions).size(), 1u);
  EXPECT_EQ(Ends(actions)[0].error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(h.metrics.bit_mismatches.value(), 1);
  EXPECT_EQ(actions.workers.at(0).cancels.size(), 1u);
}

TEST(RouterCoreTest, WorkerErrorThatMayBeRetriedMovesAndKeepsItsResults) {
  CoreHarness h;
  h.Connect();
  const WorkerStart start = h.Run(1, Key("a"));
  h.Frame(Key("a"), {WithEnd(MakeDelta(start.ticket.id, 0, {4}),
                             ErrorEnd(absl::UnavailableError("device lost")))});
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(actions.deltas.size(), 1u);
  EXPECT_FALSE(actions.deltas[0].delta.end.has_value());
  ASSERT_EQ(actions.admits.size(), 1u);
  EXPECT_EQ(actions.admits[0].length, 4);
}

TEST(RouterCoreTest, SequenceAloneOnTwoDyingWorkersIsQuarantined) {
  CoreHarness h;
  h.Connect();
  h.Run(1, Key("a"));
  h.core.WorkerLost(Key("a"));
  h.GrantOnly(Key("b"), 2);
  h.core.WorkerLost(Key("b"));
  const std::vector<SequenceEnd> ends = Ends(h.core.TakeActions());
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(h.metrics.quarantined.value(), 1);
}

TEST(RouterCoreTest, DeathsSeenFirstAsBrokenStreamsCountToo) {
  CoreHarness h;
  h.Connect();
  h.Run(1, Key("a"));
  h.core.StreamClosed(h.streams[Key("a")], absl::UnavailableError("reset"));
  h.GrantOnly(Key("b"), 2);
  h.core.StreamClosed(h.streams[Key("b")], absl::UnavailableError("reset"));
  h.core.WorkerLost(Key("a"));
  EXPECT_TRUE(Ends(h.core.TakeActions()).empty());
  h.core.WorkerLost(Key("b"));
  ASSERT_EQ(Ends(h.core.TakeActions()).size(), 1u);
}

TEST(RouterCoreTest, ResultsBetweenDeathsClearASequence) {
  CoreHarness h;
  h.Connect();
  WorkerStart start = h.Run(1, Key("a"));
  WorkerKey on = Key("a");
  for (int64_t i = 0; i < 5; ++i) {
    h.Frame(on, {MakeDelta(start.ticket.id, i, {4})});
    h.core.WorkerLost(on);
    on = Key("n" + std::to_string(i));
    h.core.ApplySnapshot({{.worker = on, .address = "x"}});
    RouterActions actions = h.core.TakeActions();
    h.core.TicketGranted(actions.admits.back().handle, h.TicketFor(on, i + 2));
    actions = h.core.TakeActions();
    h.streams[on] = actions.workers.at(0).stream;
    start = actions.workers[0].starts.at(0);
  }
  EXPECT_EQ(h.core.sequence_count(), 1u);
}

// Its client does not read for so long that several workers come and go.
TEST(RouterCoreTest, WaitingForItsClientOnDyingWorkersBlamesNoSequence) {
  CoreHarness h;
  h.Connect({State("a"), State("b"), State("c")});
  const WorkerStart start = h.Run(1, Key("a"));
  h.Frame(Key("a"), {MakeDelta(start.ticket.id, 0, std::vector<uint32_t>(50, 4))});
  h.core.WorkerLost(Key("a"));
  EXPECT_EQ(h.GrantOnly(Key("b"), 2).credit_tokens, 0);
  h.core.WorkerLost(Key("b"));
  EXPECT_TRUE(Ends(h.core.TakeActions()).empty());
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.GrantOnly(Key("c"), 3).credit_tokens, 0);
  EXPECT_EQ(h.metrics.quarantined.value(), 0);
}

// Three innocents run beside a poisonous sequence on two workers that it kills.
TEST(RouterCoreTest, SuspectsRunOneAtATimeUntilTheCulpritIsAlone) {
  CoreHarness h;
  h.Connect();
  std::vector<OpenSequence> opens;
  for (uint64_t i = 1; i <= 4; ++i) {
    opens.push_back(h.MakeOpen(i, h.Spec("s" + std::to_string(i))));
  }
  h.core.Open(h.gateway, std::move(opens));
  const auto grant_all = [&](const WorkerKey& worker, int64_t attempt) {
    const RouterActions asked = h.core.TakeActions();
    for (const AdmitRequest& admit : asked.admits) {
      h.core.TicketGranted(admit.handle, h.TicketFor(worker, attempt));
    }
    RouterActions actions = h.core.TakeActions();
    h.streams[worker] = actions.workers.at(0).stream;
    return actions.workers.at(0).starts;
  };
  ASSERT_EQ(grant_all(Key("a"), 1).size(), 4u);
  h.core.WorkerLost(Key("a"));
  ASSERT_EQ(grant_all(Key("b"), 2).size(), 4u);
  h.core.WorkerLost(Key("b"));
  h.core.ApplySnapshot({State("c")});
  std::vector<WorkerStart> turn = grant_all(Key("c"), 3);
  for (uint64_t innocent = 1; innocent <= 3; ++innocent) {
    ASSERT_EQ(turn.size(), 1u) << "one suspect at a time";
    EXPECT_EQ(turn[0].spec->sequence.value(), "s" + std::to_string(innocent));
    h.Frame(Key("c"), {MakeDelta(turn[0].ticket.id, 0, {4})});
    turn = grant_all(Key("c"), 3);
  }
  EXPECT_EQ(turn.at(0).spec->sequence.value(), "s4");
  h.core.WorkerLost(Key("c"));
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(Ends(actions).size(), 1u);
  EXPECT_EQ(actions.deltas.back().delta.handle, 4u);
  EXPECT_EQ(h.core.sequence_count(), 3u) << "the innocent go on";
}

}  // namespace
}  // namespace lockstep::router
