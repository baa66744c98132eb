#include "services/router/router_core.h"

#include <algorithm>
#include <vector>

#include "common/base/deadline_margin.h"
#include "common/base/retry_advice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/core_harness.h"

namespace lockstep::router {
namespace {

TEST(RouterCoreTest, RunsASequenceFromOpenToEnd) {
  CoreHarness h;
  h.Connect();
  h.Open(7);
  RouterActions asked = h.core.TakeActions();
  ASSERT_EQ(asked.admits.size(), 1u);
  EXPECT_EQ(asked.admits[0].candidates.size(), 2u);
  EXPECT_EQ(asked.admits[0].length, 3);
  EXPECT_EQ(asked.admits[0].new_tokens_max, 100);
  const Ticket ticket = h.TicketFor(Key("b"));
  h.core.TicketGranted(asked.admits[0].handle, ticket);
  RouterActions started = h.core.TakeActions();
  ASSERT_EQ(started.workers.size(), 1u);
  EXPECT_EQ(started.workers[0].worker, Key("b"));
  ASSERT_EQ(started.workers[0].starts.size(), 1u);
  EXPECT_EQ(started.workers[0].starts[0].credit_tokens, 50);
  EXPECT_EQ(started.workers[0].starts[0].deliver_output_from, 0);
  h.streams[Key("b")] = started.workers[0].stream;
  h.Frame(Key("b"), {WithEnd(MakeDelta(ticket.id, 0, {4, 5}), Stop())});
  RouterActions done = h.core.TakeActions();
  ASSERT_EQ(done.deltas.size(), 1u);
  EXPECT_EQ(done.deltas[0].delta.handle, 7u);
  EXPECT_EQ(UnpackIds(done.deltas[0].delta.token_ids), (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(done.deltas[0].delta.end->worker_id, "b");
  EXPECT_EQ(done.released_tickets, (std::vector<base::TicketId>{ticket.id}));
  EXPECT_EQ(h.core.sequence_count(), 0u);
  EXPECT_EQ(h.metrics.sequences.value(), 0);
}

TEST(RouterCoreTest, GroupIsOfferedToOneWorkerTogether) {
  CoreHarness h;
  h.Connect({State("a"), State("b"), State("c"), State("d"), State("e")});
  std::vector<OpenSequence> opens;
  for (uint64_t i = 0; i < 8; ++i) {
    auto spec = h.Spec("group/" + std::to_string(i), {1, 2, 3});
    spec->group_id = "group";
    opens.push_back(h.MakeOpen(i + 1, spec));
  }
  h.core.Open(h.gateway, std::move(opens));
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(actions.admits.size(), 8u);
  for (const AdmitRequest& admit : actions.admits) {
    EXPECT_EQ(admit.candidates, actions.admits[0].candidates);
    EXPECT_EQ(admit.prefix_hash, actions.admits[0].prefix_hash);
  }
}

TEST(RouterCoreTest, SequenceThatKeepsOutOfTheCacheIsChargedAlone) {
  CoreHarness h;
  h.Connect();
  auto one = h.Spec("one", {1, 2, 3});
  auto two = h.Spec("two", {1, 2, 3});
  one->disable_prefix_cache = two->disable_prefix_cache = true;
  h.core.Open(h.gateway, {h.MakeOpen(1, one), h.MakeOpen(2, two)});
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(actions.admits.size(), 2u);
  EXPECT_NE(actions.admits[0].prefix_hash, actions.admits[1].prefix_hash);
}

TEST(RouterCoreTest, BadOpensEndWithTheFieldNamedAndNeighboursRun) {
  CoreHarness h;
  h.Connect();
  auto bad = h.Spec("bad");
  bad->deliver_output_from = 1;
  h.core.Open(h.gateway, {h.MakeOpen(1, bad), h.MakeOpen(2, h.Spec("good"))});
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(Ends(actions).size(), 1u);
  EXPECT_EQ(Ends(actions)[0].error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Ends(actions)[0].error.message().find("deliver_output_from"), std::string::npos);
  EXPECT_EQ(actions.admits.size(), 1u);
}

TEST(RouterCoreTest, FullRouterAnswersWithARetryDelay) {
  RouterCoreOptions options;
  options.sequences_max = 1;
  CoreHarness h(options);
  h.Connect();
  h.Open(1);
  h.Open(2);
  const std::vector<SequenceEnd> ends = Ends(h.core.TakeActions());
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(base::GetRetryAdvice(ends[0].error).delay, absl::ZeroDuration());
}

TEST(RouterCoreTest, HoldsNoMorePromptBytesThanItMay) {
  RouterCoreOptions options;
  options.prompt_bytes_max = 100 * 4;
  CoreHarness h(options);
  h.Connect();
  const auto open = [&](uint64_t handle, std::shared_ptr<SequenceSpec> spec) {
    h.core.Open(h.gateway, {h.MakeOpen(handle, std::move(spec))});
    return Ends(h.core.TakeActions());
  };
  // Samples of a prompt count it once.
  const auto first = h.Spec("a", std::vector<uint32_t>(60, 7));
  for (uint64_t handle = 1; handle <= 3; ++handle) {
    EXPECT_TRUE(open(handle, std::make_shared<SequenceSpec>(*first)).empty());
  }
  const std::vector<SequenceEnd> ends = open(4, h.Spec("b", std::vector<uint32_t>(41, 7)));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(ends[0].error.message(),
              ::testing::HasSubstr("240 are in work and this one has 164"));
  EXPECT_GT(base::GetRetryAdvice(ends[0].error).delay, absl::ZeroDuration());
  EXPECT_TRUE(open(5, h.Spec("c", std::vector<uint32_t>(40, 7))).empty());
  auto with_body = h.Spec("d");
  with_body->body = "x";
  EXPECT_EQ(open(6, with_body).size(), 1u);

  for (uint64_t handle : {1, 2, 3, 5}) h.core.Cancel(h.gateway, handle);
  h.core.TakeActions();
  EXPECT_EQ(h.metrics.prompt_bytes.value(), 0);
  // Larger than all there is: it runs alone.
  EXPECT_TRUE(open(7, h.Spec("e", std::vector<uint32_t>(101, 7))).empty());
  EXPECT_EQ(open(8, with_body).size(), 1u);
}

TEST(RouterCoreTest, CancelEndsAtOnceAndReachesTheWorker) {
  CoreHarness h;
  h.Connect();
  const WorkerStart start = h.Run(1, Key("a"));
  h.core.Cancel(h.gateway, 1);
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(Ends(actions).size(), 1u);
  EXPECT_EQ(Ends(actions)[0].reason, EndReason::kAbort);
  EXPECT_EQ(actions.workers.at(0).cancels, (std::vector<base::TicketId>{start.ticket.id}));
  EXPECT_EQ(actions.released_tickets, (std::vector<base::TicketId>{start.ticket.id}));
}

TEST(RouterCoreTest, TicketOfAWithdrawnAdmissionIsGivenBack) {
  CoreHarness h;
  h.Connect();
  h.Open(1);
  const RouterActions asked = h.core.TakeActions();
  h.core.Cancel(h.gateway, 1);
  EXPECT_EQ(h.core.TakeActions().withdrawn_handles,
            (std::vector<uint64_t>{asked.admits.at(0).handle}));
  const Ticket late = h.TicketFor(Key("a"));
  h.core.TicketGranted(asked.admits[0].handle, late);
  const RouterActions actions = h.core.TakeActions();
  EXPECT_EQ(actions.released_tickets, (std::vector<base::TicketId>{late.id}));
  EXPECT_TRUE(actions.workers.empty());
}

TEST(RouterCoreTest, LostGatewayCancelsAllOfItsSequencesAndOnlyThose) {
  CoreHarness h;
  h.Connect();
  const WorkerStart mine = h.Run(1, Key("a"));
  h.Open(2);
  h.core.TakeActions();
  h.core.Open(GatewayId(2), {h.MakeOpen(1, h.Spec("other"))});
  h.core.TakeActions();
  h.core.GatewayLost(h.gateway);
  const RouterActions actions = h.core.TakeActions();
  EXPECT_TRUE(actions.deltas.empty()) << "nobody listens";
  EXPECT_EQ(actions.workers.at(0).cancels, (std::vector<base::TicketId>{mine.ticket.id}));
  EXPECT_EQ(actions.withdrawn_handles.size(), 1u);
  EXPECT_EQ(h.core.sequence_count(), 1u);
  EXPECT_EQ(h.metrics.sequences.value(), 1);
}

TEST(RouterCoreTest, DeadlineEndsAsAbortInEveryState) {
  CoreHarness h;
  h.Connect();
  const WorkerStart running = h.Run(1, Key("a"));
  h.Open(2);  // Admitting.
  const uint64_t admitting = h.core.TakeActions().admits.at(0).handle;
  h.core.SchedulerLost();
  h.core.SchedulerConnected();
  h.core.TakeActions();
  h.Advance(absl::Seconds(61));
  const RouterActions actions = h.core.TakeActions();
  ASSERT_EQ(Ends(actions).size(), 2u);
  for (const SequenceEnd& end : Ends(actions)) EXPECT_EQ(end.reason, EndReason::kAbort);
  EXPECT_EQ(actions.workers.at(0).cancels, (std::vector<base::TicketId>{running.ticket.id}));
  EXPECT_EQ(actions.withdrawn_handles.size(), 1u);
  EXPECT_NE(actions.withdrawn_handles[0], admitting) << "handles are never used twice";
}

TEST(RouterCoreTest, EachHopHasLessTimeThanTheOneBeforeIt) {
  CoreHarness h;
  h.Connect();
  const absl::Duration margin = base::DeadlineMargin().max;
  h.Open(1);  // The gateway's patience is 60 s.
  RouterActions actions = h.core.TakeActions();
  EXPECT_EQ(actions.admits.at(0).time_left, absl::Seconds(60) - 2 * margin);
  h.clock.Advance(absl::Seconds(10));
  h.core.TicketGranted(actions.admits[0].handle, h.TicketFor(Key("a")));
  actions = h.core.TakeActions();
  EXPECT_EQ(actions.workers.at(0).starts.at(0).time_left, absl::Seconds(50) - 2 * margin);
  // The worker ends it first; if it does not, the router does before the gateway would.
  h.Advance(absl::Seconds(50) - 2 * margin);
  EXPECT_TRUE(Ends(h.core.TakeActions()).empty());
  h.Advance(margin);
  EXPECT_EQ(Ends(h.core.TakeActions()).size(), 1u);
}

TEST(RouterCoreTest, MarginsLeaveMostOfAShortTime) {
  CoreHarness h;
  h.Connect();
  OpenSequence open = h.MakeOpen(1, h.Spec("short"));
  open.time_left = absl::Milliseconds(10);
  h.core.Open(h.gateway, {std::move(open)});
  EXPECT_EQ(h.core.TakeActions().admits.at(0).time_left, absl::Microseconds(8100));
}

TEST(RouterCoreTest, CreditReachesTheWorkerAndSurvivesAMove) {
  CoreHarness h;
  h.Connect();
  const WorkerStart first = h.Run(1, Key("a"));
  h.core.AddCredit(h.gateway, 1, 30);
  const RouterActions credited = h.core.TakeActions();
  ASSERT_EQ(credited.workers.at(0).credits.size(), 1u);
  EXPECT_EQ(credited.workers[0].credits[0].ticket, first.ticket.id);
  EXPECT_EQ(credited.workers[0].credits[0].tokens, 30);
  h.Frame(Key("a"), {MakeDelta(first.ticket.id, 0, {1, 2, 3, 4})});
  h.core.TakeActions();
  h.core.WorkerLost(Key("a"));
  h.core.AddCredit(h.gateway, 1, 5);  // Between two attempts.
  EXPECT_EQ(h.GrantOnly(Key("b"), 2).credit_tokens, 50 + 30 + 5 - 4);
}

TEST(RouterCoreTest, SchedulerLossMovesNothingAndAsksAgainForWhatWaits) {
  CoreHarness h;
  h.Connect();
  const WorkerStart running = h.Run(1, Key("a"));
  h.Open(2);
  const uint64_t first_handle = h.core.TakeActions().admits.at(0).handle;
  h.core.SchedulerLost();
  h.Frame(Key("a"), {WithEnd(MakeDelta(running.ticket.id, 0, {4}), Stop())});
  RouterActions away = h.core.TakeActions();
  EXPECT_EQ(Ends(away).size(), 1u) << "what runs goes on";
  EXPECT_TRUE(away.released_tickets.empty()) << "kept until somebody can take it";
  h.core.TicketGranted(first_handle, h.TicketFor(Key("a")));
  h.core.SchedulerConnected();
  const RouterActions back = h.core.TakeActions();
  EXPECT_EQ(back.released_tickets.size(), 2u) << "the ended one and the one nobody waits for";
  ASSERT_EQ(back.admits.size(), 1u);
  EXPECT_NE(back.admits[0].handle, first_handle);
}

TEST(RouterCoreTest, AdmissionErrorsReachTheGatewayByMeaning) {
  const auto end_for = [](absl::Status error) {
    CoreHarness h;
    h.Connect();
    h.Open(1);
    h.core.AdmissionFailed(h.core.TakeActions().admits.at(0).handle, error);
    const std::vector<SequenceEnd> ends = Ends(h.core.TakeActions());
    return ends.empty() ? SequenceEnd{.reason = EndReason::kPartial} : ends[0];
  };
  EXPECT_EQ(end_for(absl::AbortedError("by a call")).reason, EndReason::kAbort);
  EXPECT_EQ(end_for(absl::DeadlineExceededError("late")).reason, EndReason::kAbort);
  EXPECT_EQ(end_for(absl::InvalidArgumentError("never fits")).error.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(end_for(absl::ResourceExhaustedError("queue")).error.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(end_for(absl::UnavailableError("no candidate")).reason, EndReason::kPartial)
      << "goes on";
}

TEST(RouterCoreTest, FullQueueDoesNotDropWhatWasStarted) {
  CoreHarness h;
  h.Connect();
  h.Run(1, Key("a"));
  h.core.WorkerLost(Key("a"));
  h.core.AdmissionFailed(h.core.TakeActions().admits.at(0).handle,
                         absl::ResourceExhaustedError("queue full"));
  EXPECT_TRUE(h.core.TakeActions().deltas.empty());
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.core.TakeActions().admits.size(), 1u);
}

TEST(RouterCoreTest, NewWorkerIsOfferedToThoseThatQueue) {
  CoreHarness h;
  h.Connect({State("a")});
  h.Open(1);
  h.Open(2);
  const RouterActions asked = h.core.TakeActions();
  h.clock.Advance(absl::Seconds(1));
  h.core.ApplySnapshot({State("a"), State("b")});
  const RouterActions again = h.core.TakeActions();
  EXPECT_EQ(again.withdrawn_handles.size(), 2u);
  ASSERT_EQ(again.admits.size(), 2u);
  EXPECT_EQ(again.admits[0].spec, asked.admits[0].spec) << "in order of arrival";
  EXPECT_EQ(again.admits[0].candidates.size(), 2u);
}

TEST(RouterCoreTest, WorkerThatARestartedSchedulerDoesNotListKeepsStreaming) {
  CoreHarness h;
  h.Connect();
  const WorkerStart start = h.Run(1, Key("a"));
  h.core.ApplySnapshot({});
  for (int64_t i = 0; i < 10; ++i) {
    h.Advance(absl::Milliseconds(500));
    h.Frame(Key("a"), {MakeDelta(start.ticket.id, i, {4})});
  }
  EXPECT_EQ(h.core.TakeActions().deltas.size(), 10u);
  h.Advance(absl::Milliseconds(1000));
  EXPECT_EQ(h.metrics.resumptions[FailoverCause::kLeaseLost].value(), 1) << "silence ends it";
}

TEST(RouterCoreTest, IdleStreamIsClosedAndOpenedAnewWhenNeeded) {
  CoreHarness h;
  h.Connect({State("a")});
  const WorkerStart start = h.Run(1, Key("a"));
  const StreamId first = h.streams[Key("a")];
  h.Frame(Key("a"), {WithEnd(MakeDelta(start.ticket.id, 0, {4}), Stop())});
  h.core.TakeActions();
  h.Advance(absl::Seconds(61));
  EXPECT_EQ(h.core.TakeActions().closed_streams, (std::vector<StreamId>{first}));
  h.Run(2, Key("a"));
  EXPECT_NE(h.streams[Key("a")], first);
  h.core.StreamClosed(first, absl::CancelledError("late"));
  EXPECT_EQ(h.metrics.resumptions[FailoverCause::kStreamBroken].value(), 0)
      << "the old stream's end does not touch the new one";
}

TEST(RouterCoreTest, TwoHundredUniquePromptsShareTwoWorkers) {
  CoreHarness h;
  h.Connect();
  std::vector<OpenSequence> opens;
  for (uint64_t i = 1; i <= 200; ++i) {
    opens.push_back(h.MakeOpen(i, h.Spec("s" + std::to_string(i))));
  }
  h.core.Open(h.gateway, std::move(opens));
  const RouterActions actions = h.core.TakeActions();
  const auto on_a =
      std::count_if(actions.admits.begin(), actions.admits.end(),
                    [](const AdmitRequest& admit) { return admit.candidates.front() == Key("a"); });
  EXPECT_GE(on_a, 80);
  EXPECT_LE(on_a, 120);
}

}  // namespace
}  // namespace lockstep::router
