#include "services/scheduler/advance_tickets.h"

#include <set>

#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using absl::StatusCode;

// 100 blocks of 16 tokens a worker, 4 tickets of a router on it.
class AdvanceTicketsTest : public SchedulerCoreTest {
 protected:
  AdvanceTicketsTest() {
    options_.advance_tickets = 4;
    Restart();
    Pass(options_.lease);
    Join("a");
  }
  // Runs one sequence to its end, which brings the stock.
  std::vector<AdvanceGrant> Stock() {
    const auto first = Admit(Request("first", {"a"}));
    EXPECT_TRUE(first.has_value() && first->ok());
    core_->Release({(*first)->id});
    return std::exchange(all_.advance, {});
  }
  AdmissionRequest Report(const std::string& sequence, const AdvanceGrant& grant,
                          int64_t prompt = 100, int64_t new_tokens = 16) {
    AdmissionRequest report = Request(sequence, {}, prompt, new_tokens);
    report.used_ticket = grant.ticket.id;
    return report;
  }
  absl::Status Cuts(std::vector<Cut> cuts, std::vector<HeldTicket> held = {}) {
    return core_
        ->Heartbeat({.name = a_, .idle = true, .kv_blocks_free = 100, .held = held, .cuts = cuts})
        .status();
  }
  template <typename Begin>
  void ExpectWaitsForOldTickets(const Begin& begin) {
    const std::vector<AdvanceGrant> stock = Stock();
    ASSERT_EQ(stock.size(), 4u);
    const OperationId id = begin();
    AnswerCalls();
    EXPECT_FALSE(ResultOf(id).has_value());
    core_->Release({stock[0].ticket.id, stock[1].ticket.id, stock[2].ticket.id});
    EXPECT_FALSE(ResultOf(id).has_value());
    // It started before its router heard of the abort.
    core_->Use({Report("s", stock[3])});
    EXPECT_TRUE(ResultOf(id).has_value());
  }
  const WorkerName a_ = NameOf("a");
};

TEST_F(AdvanceTicketsTest, GrantBringsAStockThatStandsForHalfOfWhatIsFree) {
  EXPECT_TRUE(all_.advance.empty());
  ASSERT_TRUE(Admit(Request("s", {"a"}, 320, 16))->ok());  // 21 blocks.
  ASSERT_EQ(all_.advance.size(), 4u);
  std::set<base::TicketId> ids;
  for (const AdvanceGrant& grant : all_.advance) {
    ids.insert(grant.ticket.id);
    EXPECT_EQ(grant.stream, kStream);
    EXPECT_EQ(grant.ticket.worker, a_);
    EXPECT_EQ(grant.ticket.attempt, 1);
    EXPECT_EQ(grant.ticket.epoch, core_->state().epoch);
    EXPECT_EQ(grant.ticket.plan, (ChunkPlan{.split_kv_size = 64, .length = 0}));
    EXPECT_EQ(grant.tokens_max, 79 / 8 * 16);
  }
  EXPECT_EQ(ids.size(), 4u);
  // They are nobody's yet: neither load nor promised room.
  EXPECT_EQ(core_->state().running_sequences, 1);
  EXPECT_EQ(core_->Workers()[0].kv_blocks_free, 79);
}

TEST_F(AdvanceTicketsTest, StockIsRefilledOnceHalfOfItIsUsed) {
  const std::vector<AdvanceGrant> stock = Stock();
  core_->Use({Report("s1", stock[0])});
  Collect();
  EXPECT_TRUE(all_.advance.empty());
  core_->Use({Report("s2", stock[1])});
  Collect();
  EXPECT_EQ(all_.advance.size(), 2u);
}

TEST_F(AdvanceTicketsTest, UsedTicketIsChargedAndJudgedLikeAnyOther) {
  const std::vector<AdvanceGrant> stock = Stock();
  core_->Use({Report("s1", stock[0], 100, 16)});
  EXPECT_EQ(core_->state().running_sequences, 1);
  EXPECT_EQ(core_->accounting().blocks_reserved(a_), 8);
  EXPECT_EQ(core_->counters().used_advance, 1);
  const base::TicketId id = stock[0].ticket.id;
  const HeldTicket held{.ticket = id, .kv_blocks = 7};
  EXPECT_TRUE(Cuts({{.ticket = id, .begin = 0, .end = 64, .length = 100},
                    {.ticket = id, .begin = 64, .end = 100, .length = 100}},
                   {held})
                  .ok());
  // The ticket would have been good for this length, but the sequence is not.
  EXPECT_FALSE(Cuts({{.ticket = id, .begin = 64, .end = 120, .length = 120}}, {held}).ok());
  EXPECT_EQ(core_->counters().plan_violations, 1);
}

TEST_F(AdvanceTicketsTest, CutThatComesBeforeTheReportIsJudgedByWhatTheTicketAllows) {
  const std::vector<AdvanceGrant> stock = Stock();
  const base::TicketId id = stock[0].ticket.id;
  const HeldTicket held{.ticket = id, .kv_blocks = 7};
  EXPECT_TRUE(Cuts({{.ticket = id, .begin = 0, .end = 100, .length = 100}}, {held}).ok());
  core_->Use({Report("s1", stock[0])});
  EXPECT_EQ(core_->state().running_sequences, 1);
  EXPECT_FALSE(
      Cuts({{.ticket = stock[1].ticket.id, .begin = 0, .end = 60, .length = 100}}, {held}).ok());
}

TEST_F(AdvanceTicketsTest, CutOfMoreThanTheTicketAllowsIsAViolation) {
  const std::vector<AdvanceGrant> stock = Stock();
  const int64_t length = stock[0].tokens_max + 64;
  EXPECT_FALSE(
      Cuts({{.ticket = stock[0].ticket.id, .begin = 0, .end = length, .length = length}}).ok());
}

TEST_F(AdvanceTicketsTest, TicketThatEndedBeforeItsReportIsNotChargedAgain) {
  const std::vector<AdvanceGrant> stock = Stock();
  const base::TicketId id = stock[0].ticket.id;
  ASSERT_TRUE(
      core_->Heartbeat({.name = a_, .idle = true, .kv_blocks_free = 100, .ended = {id}}).ok());
  core_->Use({Report("s1", stock[0])});
  EXPECT_EQ(core_->state().running_sequences, 0);
  EXPECT_EQ(core_->accounting().blocks_charged(), 0);
}

TEST_F(AdvanceTicketsTest, ReportOfAnotherTicketIsIgnored) {
  const Ticket own = **Admit(Request("s1", {"a"}));
  const int64_t charged = core_->accounting().blocks_charged();
  core_->Use({Report("s2", {.ticket = own}), Report("s3", {})});
  EXPECT_EQ(core_->accounting().blocks_charged(), charged);
  EXPECT_EQ(core_->counters().used_advance, 0);
}

TEST_F(AdvanceTicketsTest, NobodyGetsAheadOfThoseWhoWait) {
  ASSERT_TRUE(Admit(Request("large", {"a"}, 1000, 16))->ok());
  all_.advance.clear();
  EXPECT_FALSE(Admit(Request("waits", {"a"}, 1000, 16)).has_value());
  AdmissionRequest other = Request("other", {"a"}, 16, 16);
  other.stream = RouterStream(2);
  ASSERT_TRUE(Admit(std::move(other))->ok());
  EXPECT_TRUE(all_.advance.empty());
}

TEST_F(AdvanceTicketsTest, NothingIsGrantedAheadOnAFullOrDrainingWorker) {
  ASSERT_TRUE(Admit(Request("large", {"a"}, 1500, 16))->ok());  // 5 blocks are left for 4.
  EXPECT_TRUE(all_.advance.empty());
  Join("b");
  const Ticket ticket = **Admit(Request("s1", {"b"}));
  std::vector<AdvanceGrant> stock = std::exchange(all_.advance, {});
  ASSERT_EQ(stock.size(), 4u);
  ASSERT_TRUE(core_->Drain(NameOf("b"), /*force=*/true).ok());
  core_->Use({Report("s2", stock[0]), Report("s3", stock[1]), Report("s4", stock[2])});
  Collect();
  EXPECT_TRUE(all_.advance.empty());
}

TEST_F(AdvanceTicketsTest, PauseEndsOnlyWhenEveryTicketIsUsedUpOrGivenBack) {
  const std::vector<AdvanceGrant> stock = Stock();
  const OperationId id = *core_->Pause(PauseMode::kWait);
  AnswerCalls();
  EXPECT_FALSE(ResultOf(id).has_value());
  std::vector<base::TicketId> tickets;
  for (const AdvanceGrant& grant : stock) tickets.push_back(grant.ticket.id);
  core_->Release(tickets);
  core_->Tick();
  EXPECT_TRUE(ResultOf(id).has_value());
}

TEST_F(AdvanceTicketsTest, TicketOfASilentRouterExpires) {
  Stock();
  const OperationId id = *core_->Pause(PauseMode::kWait);
  AnswerCalls();
  core_->CloseStream(kStream);
  Pass(options_.ticket_expiry + absl::Seconds(1), {a_});
  EXPECT_TRUE(ResultOf(id).has_value());
}

TEST_F(AdvanceTicketsTest, AbortMakesTicketsThatAreOutWorthlessAndGrantsNoneForAWhile) {
  const std::vector<AdvanceGrant> stock = Stock();
  const base::Epoch before = core_->state().epoch;
  ASSERT_TRUE(core_->Abort({base::RequestId("r")}).ok());
  EXPECT_GT(core_->state().epoch, before);
  EXPECT_LT(stock[0].ticket.epoch, core_->state().epoch);
  std::vector<base::TicketId> tickets;
  for (const AdvanceGrant& grant : stock) tickets.push_back(grant.ticket.id);
  core_->Release(tickets);
  AnswerCalls();
  EXPECT_TRUE(Admit(Request("s1", {"a"}))->ok());
  EXPECT_TRUE(all_.advance.empty());
  Pass(options_.aborted.quiet, {a_});
  EXPECT_TRUE(Admit(Request("s2", {"a"}))->ok());
  EXPECT_EQ(all_.advance.size(), 4u);
}

// A router that has not heard of the abort yet would start a newcomer with an old ticket, and the
// newcomer would end as if it had entered before the abort.
TEST_F(AdvanceTicketsTest, AbortOfEverythingIsAnsweredWhenNoRouterHoldsAnOldTicket) {
  ExpectWaitsForOldTickets([&] { return *core_->AbortAll(); });
}

TEST_F(AdvanceTicketsTest, AbortByIdIsAnsweredWhenNoRouterHoldsAnOldTicket) {
  ExpectWaitsForOldTickets([&] { return *core_->Abort({base::RequestId("r")}); });
}

// Its router started it, and said so after the abort had begun; its worker refused it.
TEST_F(AdvanceTicketsTest, AbortByIdCountsWhatStartedWithAnOldTicket) {
  const std::vector<AdvanceGrant> stock = Stock();
  const OperationId id = *core_->Abort({base::RequestId("r")});
  AnswerCalls();
  core_->Release({stock[0].ticket.id, stock[1].ticket.id, stock[2].ticket.id});
  core_->Use({Report("r", stock[3])});
  EXPECT_FALSE(ResultOf(id).has_value());
  core_->Release({stock[3].ticket.id});
  AdmissionRequest again = Request("r", {"a"});
  again.entry_epoch = stock[3].ticket.epoch;
  again.attempt = 1;
  EXPECT_EQ(Admit(std::move(again))->status().code(), StatusCode::kAborted);
  ASSERT_TRUE(ResultOf(id).has_value());
  EXPECT_EQ(ResultOf(id)->aborted_sequences, 1);
  EXPECT_EQ(ResultOf(id)->unknown_requests, 0);
}

TEST_F(AdvanceTicketsTest, PauseThatAbortsIsAnsweredWhenNoRouterHoldsAnOldTicket) {
  ExpectWaitsForOldTickets([&] { return *core_->Pause(PauseMode::kAbort); });
}

// One that only lost its stream uses its tickets for half of their life.
TEST_F(AdvanceTicketsTest, AbortOfEverythingWaitsForALostRouterNoLongerThanItWouldUseItsTickets) {
  Stock();
  const OperationId id = *core_->AbortAll();
  AnswerCalls();
  core_->CloseStream(kStream);
  Pass(options_.ticket_expiry / 2, {a_});
  EXPECT_FALSE(ResultOf(id).has_value());
  Pass(absl::Milliseconds(600), {a_});
  EXPECT_TRUE(ResultOf(id).has_value());
  EXPECT_EQ(core_->accounting().ticket_count(a_), 0u);
}

TEST_F(AdvanceTicketsTest, PauseForTheDrainWaitsForALostRouterNoLonger) {
  Stock();
  core_->CloseStream(kStream);
  const OperationId id = *core_->Pause(PauseMode::kWait);
  AnswerCalls();
  Pass(options_.ticket_expiry / 2 + absl::Milliseconds(600), {a_});
  EXPECT_TRUE(ResultOf(id).has_value());
}

// Its router started it and was lost before it could say so.
TEST_F(AdvanceTicketsTest, StartedTicketOfALostRouterLivesUntilItsWorkerSaysOtherwise) {
  const std::vector<AdvanceGrant> stock = Stock();
  held_[a_] = {{.ticket = stock[0].ticket.id, .kv_blocks = 3}};
  core_->CloseStream(kStream);
  const OperationId id = *core_->Pause(PauseMode::kWait);
  AnswerCalls();
  Pass(3 * options_.ticket_expiry, {a_});
  EXPECT_FALSE(ResultOf(id).has_value());
  held_[a_].clear();
  Pass(absl::Seconds(1), {a_});
  EXPECT_TRUE(ResultOf(id).has_value());
}

TEST_F(AdvanceTicketsTest, LostWorkerTakesItsTicketsWithIt) {
  const std::vector<AdvanceGrant> stock = Stock();
  Pass(2 * options_.lease);
  ASSERT_EQ(all_.lost.size() + core_->TakeDecisions().lost.size(), 1u);
  core_->Use({Report("s1", stock[0])});
  EXPECT_EQ(core_->state().running_sequences, 0);
  EXPECT_EQ(core_->counters().used_advance, 0);
}

TEST_F(AdvanceTicketsTest, TicketFromBeforeARestartIsBelievedWhenItsWorkerHoldsIt) {
  const std::vector<AdvanceGrant> stock = Stock();
  Restart();
  WorkerRegistration registration = RegistrationOf("a");
  registration.held = {{.ticket = stock[0].ticket.id, .kv_blocks = 3}};
  ASSERT_TRUE(core_->Register(registration).ok());
  core_->Use({Report("s1", stock[0]), Report("s2", stock[1])});
  EXPECT_EQ(core_->state().running_sequences, 1);
  EXPECT_EQ(core_->counters().used_advance, 0);
}

}  // namespace
}  // namespace lockstep::scheduler
