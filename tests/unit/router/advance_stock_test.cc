#include "services/router/advance_stock.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/router/core_harness.h"

namespace lockstep::router {
namespace {

// Gives `count` tickets on `worker`, as the scheduler does after it was used.
std::vector<base::TicketId> Fill(CoreHarness* h, const WorkerKey& worker, int count,
                                 int64_t tokens_max = 200) {
  std::vector<base::TicketId> ids;
  for (int i = 0; i < count; ++i) {
    AdvanceTicket ticket = h->AdvanceFor(worker, tokens_max);
    ids.push_back(ticket.ticket.id);
    h->core.TicketGrantedAhead(std::move(ticket));
  }
  return ids;
}

// The one start among the actions.
const WorkerStart& OnlyStart(const RouterActions& actions) {
  LOCKSTEP_CHECK_EQ(actions.workers.size(), 1u);
  LOCKSTEP_CHECK_EQ(actions.workers[0].starts.size(), 1u);
  return actions.workers[0].starts[0];
}

void EndOnly(CoreHarness* h, const RouterActions& started) {
  h->streams[started.workers[0].worker] = started.workers[0].stream;
  const base::TicketId ticket = started.workers[0].starts[0].ticket.id;
  h->Frame(started.workers[0].worker, {WithEnd(MakeDelta(ticket, 0, {4}), Stop())});
}

TEST(AdvanceStockTest, SequenceThatComesAloneStartsWithoutAsking) {
  CoreHarness h;
  h.Connect({State("a")});
  const std::vector<base::TicketId> ids = Fill(&h, Key("a"), 2);
  h.Open(1);
  const RouterActions actions = h.core.TakeActions();
  EXPECT_TRUE(actions.admits.empty());
  const WorkerStart& start = OnlyStart(actions);
  EXPECT_EQ(start.ticket.id, ids[0]);
  EXPECT_EQ(start.ticket.attempt, 1);
  EXPECT_EQ(start.ticket.plan.length, 3);
  EXPECT_EQ(start.entry_epoch, base::Epoch(1));
  ASSERT_EQ(actions.entries.size(), 1u);
  EXPECT_EQ(actions.entries[0].handle, 1u);
  EXPECT_EQ(actions.entries[0].epoch, base::Epoch(1));
  EXPECT_EQ(h.metrics.started_ahead.value(), 1);
}

TEST(AdvanceStockTest, ReportsAreGatheredForAWhile) {
  CoreHarness h;
  h.Connect({State("a")});
  const std::vector<base::TicketId> ids = Fill(&h, Key("a"), 2);
  h.Open(1);
  RouterActions started = h.core.TakeActions();
  EXPECT_TRUE(started.used.empty());
  EndOnly(&h, started);
  EXPECT_TRUE(h.core.TakeActions().released_tickets.empty());
  EXPECT_EQ(h.core.NextWakeup(), h.clock.Now() + RouterCoreOptions().report_delay);
  h.Advance(RouterCoreOptions().report_delay);
  const RouterActions reported = h.core.TakeActions();
  ASSERT_EQ(reported.used.size(), 1u);
  EXPECT_EQ(reported.used[0].used_ticket, ids[0]);
  EXPECT_EQ(reported.used[0].length, 3);
  EXPECT_EQ(reported.used[0].new_tokens_max, 100);
  EXPECT_EQ(reported.used[0].spec->sequence, base::SequenceId("s1"));
  EXPECT_EQ(reported.released_tickets, std::vector<base::TicketId>{ids[0]});
  h.Advance(absl::Seconds(1));
  EXPECT_TRUE(h.core.TakeActions().empty());
}

TEST(AdvanceStockTest, ManyReportsOrAnAdmissionEndTheWaiting) {
  RouterCoreOptions options;
  options.reports_max = 3;
  CoreHarness h(options);
  h.Connect({State("a")});
  Fill(&h, Key("a"), 8);
  for (uint64_t handle = 1; handle <= 2; ++handle) {
    h.Open(handle);
    EXPECT_TRUE(h.core.TakeActions().used.empty());
  }
  h.Open(3);
  EXPECT_EQ(h.core.TakeActions().used.size(), 3u);
  h.Open(4);
  EXPECT_TRUE(h.core.TakeActions().used.empty());
  auto large = h.Spec("large");
  large->max_new_tokens = 198;
  h.Open(5, large);
  const RouterActions actions = h.core.TakeActions();
  EXPECT_EQ(actions.admits.size(), 1u);
  EXPECT_EQ(actions.used.size(), 1u);
}

TEST(AdvanceStockTest, TicketTakesWhatItIsGoodForAndNoMore) {
  CoreHarness h;
  h.Connect({State("a")});
  Fill(&h, Key("a"), 1, /*tokens_max=*/103);
  auto large = h.Spec("large", {1, 2, 3, 4});
  h.Open(1, large);
  RouterActions asked = h.core.TakeActions();
  ASSERT_EQ(asked.admits.size(), 1u);
  h.core.TicketGranted(asked.admits[0].handle, h.TicketFor(Key("a")));
  h.Open(2);  // 3 + 100.
  EXPECT_EQ(h.core.TakeActions().admits.size(), 0u);
}

TEST(AdvanceStockTest, GroupIsAskedForSoThatItIsChargedAndQueuedAsOne) {
  CoreHarness h;
  h.Connect({State("a")});
  Fill(&h, Key("a"), 8);
  std::vector<OpenSequence> opens;
  for (uint64_t i = 0; i < 3; ++i) {
    auto spec = h.Spec("group/" + std::to_string(i), {1, 2, 3});
    spec->group_id = "group";
    opens.push_back(h.MakeOpen(i + 1, spec));
  }
  h.core.Open(h.gateway, std::move(opens));
  EXPECT_EQ(h.core.TakeActions().admits.size(), 3u);
}

TEST(AdvanceStockTest, NobodyPassesASequenceThatWaitsForTheScheduler) {
  CoreHarness h;
  h.Connect({State("a")});
  h.Open(1);
  ASSERT_EQ(h.core.TakeActions().admits.size(), 1u);
  Fill(&h, Key("a"), 2);
  h.Open(2);
  EXPECT_EQ(h.core.TakeActions().admits.size(), 1u);
}

TEST(AdvanceStockTest, OnlyNewcomersUseIt) {
  CoreHarness h;
  h.Connect({State("a")});
  Fill(&h, Key("a"), 4);
  auto resubmitted = h.Spec("resubmitted");
  resubmitted->entry_epoch = base::Epoch(1);
  h.Open(1, resubmitted);
  RouterActions asked = h.core.TakeActions();
  ASSERT_EQ(asked.admits.size(), 1u);
  h.core.AdmissionFailed(asked.admits[0].handle, absl::AbortedError("older than the abort"));
  h.core.TakeActions();
  // One whose ticket the worker did not take asks the next time.
  h.Open(2);
  const RouterActions started = h.core.TakeActions();
  const Ticket ticket = OnlyStart(started).ticket;
  h.core.FrameCame(
      started.workers[0].stream,
      {.refusals = {{ticket.id, absl::FailedPreconditionError("ticket.epoch is older")}}});
  const RouterActions again = h.core.TakeActions();
  ASSERT_EQ(again.admits.size(), 1u);
  EXPECT_EQ(again.admits[0].attempt, 1);
  EXPECT_EQ(again.released_tickets, std::vector<base::TicketId>{ticket.id});
}

TEST(AdvanceStockTest, NewEpochGivesOldTicketsBackAtOnce) {
  CoreHarness h;
  h.Connect({State("a")});
  const std::vector<base::TicketId> ids = Fill(&h, Key("a"), 2);
  h.core.EpochSeen(base::Epoch(1));
  EXPECT_TRUE(h.core.TakeActions().empty());
  h.core.EpochSeen(base::Epoch(2));
  EXPECT_EQ(h.core.TakeActions().released_tickets, ids);
  h.Open(1);
  EXPECT_EQ(h.core.TakeActions().admits.size(), 1u);
}

TEST(AdvanceStockTest, UnusedTicketIsGivenBackHalfwayToItsEnd) {
  CoreHarness h;
  h.Connect({State("a")});
  const std::vector<base::TicketId> ids = Fill(&h, Key("a"), 2);
  EXPECT_EQ(h.core.NextWakeup(), h.clock.Now() + absl::Seconds(2.5));
  h.clock.Advance(absl::Seconds(2.5));
  h.Open(1);  // Before the core has been ticked.
  EXPECT_EQ(h.core.TakeActions().admits.size(), 1u);
  h.core.Tick();
  EXPECT_EQ(h.core.TakeActions().released_tickets, ids);
}

TEST(AdvanceStockTest, LostSchedulerOrWorkerEmptiesIt) {
  CoreHarness h;
  h.Connect({State("a"), State("b")});
  const std::vector<base::TicketId> on_a = Fill(&h, Key("a"), 1);
  const std::vector<base::TicketId> on_b = Fill(&h, Key("b"), 1);
  h.core.WorkerLost(Key("a"));
  EXPECT_TRUE(h.core.TakeActions().released_tickets.empty());
  h.Advance(RouterCoreOptions().report_delay);
  EXPECT_EQ(h.core.TakeActions().released_tickets, on_a);
  h.core.SchedulerLost();
  EXPECT_TRUE(h.core.TakeActions().empty());
  h.core.SchedulerConnected();
  EXPECT_EQ(h.core.TakeActions().released_tickets, on_b);
  h.Open(1);
  EXPECT_EQ(h.core.TakeActions().admits.size(), 1u);
}

TEST(AdvanceStockTest, TicketOfAnUnknownWorkerIsGivenBack) {
  CoreHarness h;
  h.Connect({State("a")});
  const std::vector<base::TicketId> ids = Fill(&h, Key("z"), 1);
  EXPECT_EQ(h.core.TakeActions().released_tickets, ids);
}

}  // namespace
}  // namespace lockstep::router
