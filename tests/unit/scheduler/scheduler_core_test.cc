#include "services/scheduler/scheduler_core.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

TEST_F(SchedulerCoreTest, GrantsOnTheFirstCandidateThatFits) {
  Join("a");
  Join("b");
  const auto first = Admit(Request("s1", {"a", "b"}, 1400, 16));
  ASSERT_TRUE(first.has_value() && first->ok());
  EXPECT_EQ((*first)->worker, NameOf("a"));
  EXPECT_EQ((*first)->attempt, 1);
  EXPECT_EQ((*first)->plan, (ChunkPlan{.split_kv_size = 64, .length = 1400}));
  const auto second = Admit(Request("s2", {"a", "b"}, 1400, 16));
  ASSERT_TRUE(second.has_value() && second->ok());
  EXPECT_EQ((*second)->worker, NameOf("b"));
}

TEST_F(SchedulerCoreTest, QueuesUntilTheRouterGivesATicketBack) {
  Join("a");
  const auto first = Admit(Request("s1", {"a"}, 1400, 16));
  AdmissionRequest next = Request("s2", {"a"}, 1400, 16);
  const uint64_t handle = next.handle;
  EXPECT_FALSE(Admit(std::move(next)).has_value());
  EXPECT_EQ(core_->state().queued_sequences, 1);
  core_->Release({(*first)->id});
  const auto granted = OutcomeOf(handle);
  ASSERT_TRUE(granted.has_value() && granted->ok());
  EXPECT_NE((*granted)->id, (*first)->id);
}

TEST_F(SchedulerCoreTest, ImpossibleRequestsAreRefusedWithBothNumbers) {
  Join("a");
  const auto context = Admit(Request("s1", {"a"}, 1500, 101));
  EXPECT_EQ(context->status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(context->status().message()), HasSubstr("1601"));
  EXPECT_THAT(std::string(context->status().message()), HasSubstr("1600"));
  WorkerRegistration small = RegistrationOf("b");
  small.capacity.kv_blocks = 10;
  Restart();
  Pass(options_.lease);
  ASSERT_TRUE(core_->Register(small).ok());
  const auto blocks = Admit(Request("s2", {"b"}, 160, 1));
  EXPECT_EQ(blocks->status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(blocks->status().message()),
              HasSubstr("needs 11 KV blocks; the largest worker has 10"));
  EXPECT_EQ(Admit(Request("s3", {"b"}, 0, 1))->status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SchedulerCoreTest, RequestWithoutALivingCandidateIsToldToChooseAgain) {
  Join("a");
  EXPECT_EQ(Admit(Request("s1", {"b"}))->status().code(), StatusCode::kUnavailable);
  AdmissionRequest waiting = Request("s2", {"a"}, 1400, 16);
  Admit(Request("s0", {"a"}, 1400, 16));
  const uint64_t handle = waiting.handle;
  EXPECT_FALSE(Admit(std::move(waiting)).has_value());
  Pass(options_.lease);
  EXPECT_EQ(OutcomeOf(handle)->status().code(), StatusCode::kUnavailable);
}

TEST_F(SchedulerCoreTest, LostWorkerIsReportedOnceAndItsReservationsEnd) {
  Join("a");
  Admit(Request("s1", {"a"}));
  Pass(2 * options_.lease);
  Collect();
  ASSERT_EQ(all_.lost.size(), 1u);
  EXPECT_EQ(all_.lost[0].name, NameOf("a"));
  EXPECT_EQ(all_.lost[0].why, LeaseEnd::kExpired);
  EXPECT_EQ(core_->state().running_sequences, 0);
  EXPECT_EQ(core_->accounting().blocks_charged(), 0);
}

TEST_F(SchedulerCoreTest, StandstillOfTheSchedulerEndsNobodysLease) {
  Join("a");
  Pass(absl::Seconds(1), {NameOf("a")});
  clock_.Advance(absl::Seconds(60));
  core_->Tick();
  Collect();
  EXPECT_TRUE(all_.lost.empty());
  Pass(options_.lease);
  Collect();
  EXPECT_EQ(all_.lost.size(), 1u);
}

TEST_F(SchedulerCoreTest, NewIncarnationAtTheSameAddressReplacesTheOld) {
  Join("a", 1);
  Admit(Request("s1", {"a"}));
  Join("a", 2);
  Collect();
  ASSERT_EQ(all_.lost.size(), 1u);
  EXPECT_EQ(all_.lost[0].why, LeaseEnd::kReplaced);
  EXPECT_EQ(core_->Heartbeat({.name = NameOf("a", 1)}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(core_->Heartbeat({.name = NameOf("a", 2), .idle = true}).ok());
  EXPECT_EQ(core_->state().running_sequences, 0);
}

TEST_F(SchedulerCoreTest, RepeatedRegistrationIsHarmless) {
  Join("a");
  Admit(Request("s1", {"a"}));
  Join("a");
  Collect();
  EXPECT_TRUE(all_.lost.empty());
  EXPECT_EQ(core_->state().running_sequences, 1);
}

TEST_F(SchedulerCoreTest, AWorkerInAnotherModeThanExpectedNeverJoins) {
  WorkerRegistration normal = RegistrationOf("a");
  normal.contract.fields.push_back({"mode", "MODE_NORMAL"});
  const absl::Status refused = core_->Register(normal).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("MODE_NORMAL"));
  options_.normal_mode = true;
  Restart();
  EXPECT_TRUE(core_->Register(normal).ok());
  WorkerRegistration other = RegistrationOf("b");
  other.contract.fields.push_back({"mode", "MODE_DETERMINISTIC"});
  EXPECT_EQ(core_->Register(other).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(SchedulerCoreTest, MisalignedOrTicketlessCutIsCountedAndRevokesTheLease) {
  Join("a");
  Join("b");
  const Ticket ticket = **Admit(Request("s1", {"a"}, 160, 16));
  WorkerReport report{.name = NameOf("a"), .idle = true, .kv_blocks_free = 90};
  report.cuts = {{.ticket = ticket.id, .begin = 0, .end = 64, .length = 160},
                 {.ticket = ticket.id, .begin = 64, .end = 160, .length = 160}};
  ASSERT_TRUE(core_->Heartbeat(report).ok());
  EXPECT_EQ(core_->counters().plan_violations, 0);
  report.cuts = {{.ticket = ticket.id, .begin = 0, .end = 65, .length = 160}};
  EXPECT_EQ(core_->Heartbeat(report).status().code(), StatusCode::kFailedPrecondition);
  Collect();
  ASSERT_EQ(all_.lost.size(), 1u);
  EXPECT_EQ(all_.lost[0].why, LeaseEnd::kRevoked);
  EXPECT_EQ(all_.violations.size(), 1u);
  EXPECT_EQ(
      core_->Heartbeat({.name = NameOf("b"), .cuts = {{.begin = 0, .end = 64}}}).status().code(),
      StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_->counters().plan_violations, 2);
}

TEST_F(SchedulerCoreTest, CutReportedAfterTheRouterReleasedItsTicketIsNoViolation) {
  Join("a");
  const Ticket ticket = **Admit(Request("s1", {"a"}, 160, 16));
  core_->Release({ticket.id});
  const WorkerReport report{.name = NameOf("a"),
                            .idle = true,
                            .kv_blocks_free = 100,
                            .cuts = {{.ticket = ticket.id, .begin = 0, .end = 160, .length = 160}},
                            .ended = {ticket.id}};
  EXPECT_TRUE(core_->Heartbeat(report).ok());
  EXPECT_TRUE(core_->Heartbeat(report).ok());  // Its answer was lost, so it came again.
  EXPECT_EQ(core_->counters().plan_violations, 0);
}

TEST_F(SchedulerCoreTest, TicketThatTheWorkerStillHoldsIsTakenBack) {
  Join("a");
  const Ticket ticket = **Admit(Request("s1", {"a"}, 160, 16));
  core_->Release({ticket.id});
  EXPECT_EQ(core_->state().running_sequences, 0);
  Hold(ticket, 10);
  Pass(absl::Milliseconds(100), {NameOf("a")});
  EXPECT_EQ(core_->state().running_sequences, 1);
  held_.clear();
  Pass(absl::Milliseconds(100), {NameOf("a")});
  EXPECT_EQ(core_->state().running_sequences, 0);
  EXPECT_EQ(core_->accounting().blocks_charged(), 0);
}

TEST_F(SchedulerCoreTest, DrainingWorkerGetsNothingNewAndTheLastOneStays) {
  Join("a");
  EXPECT_FALSE(*core_->Drain(NameOf("a"), /*force=*/false));
  EXPECT_TRUE(Admit(Request("s1", {"a"}))->ok());
  Join("b");
  EXPECT_TRUE(*core_->Drain(NameOf("a"), /*force=*/false));
  EXPECT_EQ(Admit(Request("s2", {"a"}))->status().code(), StatusCode::kUnavailable);
  EXPECT_EQ((*Admit(Request("s3", {"a", "b"})))->worker, NameOf("b"));
  EXPECT_FALSE(*core_->Drain(NameOf("b"), /*force=*/true));
  EXPECT_EQ(Admit(Request("s4", {"b"}))->status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(core_->Leave(NameOf("b")).ok());
  EXPECT_EQ(core_->Leave(NameOf("b")).status().code(), StatusCode::kFailedPrecondition);
}

// An engine that hangs loses its lease after seconds, and its process gives it up after a minute.
TEST_F(SchedulerCoreTest, AWorkerIsHeardThatSaysWhyItFailedAfterItsLeaseExpired) {
  const auto ended = [this](LeaseEnd why) {
    return core_->counters().leases_ended[static_cast<size_t>(why)];
  };
  Join("a");
  Pass(absl::Minutes(1), {});
  EXPECT_EQ(ended(LeaseEnd::kExpired), 1);
  EXPECT_EQ(core_->Leave(NameOf("a")).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(core_->Leave(NameOf("a"), LeaseEnd::kFailed).ok());
  EXPECT_EQ(ended(LeaseEnd::kFailed), 1);
  EXPECT_FALSE(core_->Leave(NameOf("a"), LeaseEnd::kFailed).ok());
  EXPECT_EQ(ended(LeaseEnd::kFailed), 1);
  EXPECT_FALSE(core_->Leave(NameOf("b"), LeaseEnd::kFailed).ok());
}

TEST_F(SchedulerCoreTest, DeadlineEndsAWait) {
  Join("a");
  Admit(Request("s1", {"a"}, 1400, 16));
  AdmissionRequest request = Request("s2", {"a"}, 1400, 16);
  request.deadline = clock_.Now() + absl::Seconds(2);
  const uint64_t handle = request.handle;
  EXPECT_FALSE(Admit(std::move(request)).has_value());
  Pass(absl::Seconds(2), {NameOf("a")});
  EXPECT_EQ(OutcomeOf(handle)->status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(SchedulerCoreTest, ClosedStreamDropsItsQueueButNotItsTickets) {
  Join("a");
  const Ticket ticket = **Admit(Request("s1", {"a"}, 1400, 16));
  EXPECT_FALSE(Admit(Request("s2", {"a"}, 1400, 16)).has_value());
  core_->CloseStream(kStream);
  EXPECT_EQ(core_->state().queued_sequences, 0);
  EXPECT_EQ(core_->state().running_sequences, 1);
  // The worker never got the ticket: it expires.
  Pass(options_.ticket_expiry + absl::Seconds(1), {NameOf("a")});
  EXPECT_EQ(core_->state().running_sequences, 0);
}

TEST_F(SchedulerCoreTest, WithdrawnHeadOfTheLineLetsTheNextPass) {
  Join("a");
  Admit(Request("s1", {"a"}, 160, 16));
  AdmissionRequest large = Request("s2", {"a"}, 1500, 16);
  const uint64_t large_handle = large.handle;
  EXPECT_FALSE(Admit(std::move(large)).has_value());
  Pass(absl::Seconds(2), {NameOf("a")});
  AdmissionRequest small = Request("s3", {"a"}, 160, 16);
  const uint64_t small_handle = small.handle;
  EXPECT_FALSE(Admit(std::move(small)).has_value());  // The aged one is ahead.
  core_->Withdraw(kStream, {large_handle});
  EXPECT_TRUE(OutcomeOf(small_handle)->ok());
  EXPECT_FALSE(OutcomeOf(large_handle).has_value());
}

TEST_F(SchedulerCoreTest, RestartedSchedulerGrantsNothingForOneLeaseAndThenWorksFromTruth) {
  Join("a");
  const Ticket old_ticket = **Admit(Request("s1", {"a"}, 1400, 16));
  const uint64_t epoch = core_->state().scheduler_epoch;
  Restart();
  EXPECT_EQ(core_->state().scheduler_epoch, epoch + 1);
  EXPECT_EQ(core_->Heartbeat({.name = NameOf("a"), .idle = true}).status().code(),
            StatusCode::kNotFound);
  AdmissionRequest waiting = Request("s2", {"a"}, 160, 16);
  const uint64_t handle = waiting.handle;
  EXPECT_FALSE(Admit(std::move(waiting)).has_value());
  WorkerRegistration again = RegistrationOf("a", 1);
  again.held = {{.ticket = old_ticket.id, .kv_blocks = 95}};
  ASSERT_TRUE(core_->Register(again).ok());
  Hold(old_ticket, 95);
  Pass(options_.lease - absl::Milliseconds(100), {NameOf("a")});
  EXPECT_FALSE(OutcomeOf(handle).has_value());
  EXPECT_EQ(core_->state().running_sequences, 1);
  Pass(absl::Milliseconds(200), {NameOf("a")});
  EXPECT_FALSE(OutcomeOf(handle).has_value());  // What the worker holds leaves no room.
  held_.clear();
  Pass(absl::Milliseconds(100), {NameOf("a")});
  ASSERT_TRUE(OutcomeOf(handle).has_value());
  EXPECT_NE((*OutcomeOf(handle))->id, old_ticket.id);
}

TEST_F(SchedulerCoreTest, TicketGrantedJustBeforeARestartIsNoViolation) {
  Join("a");
  const Ticket ticket = **Admit(Request("s1", {"a"}, 160, 16));
  Restart();
  ASSERT_TRUE(core_->Register(RegistrationOf("a", 1)).ok());
  // The router's start command reaches the worker only now.
  EXPECT_TRUE(
      core_
          ->Heartbeat({.name = NameOf("a"),
                       .steps = 1,
                       .kv_blocks_free = 90,
                       .held = {{.ticket = ticket.id, .kv_blocks = 10}},
                       .cuts = {{.ticket = ticket.id, .begin = 0, .end = 160, .length = 160}}})
          .ok());
  EXPECT_EQ(core_->state().running_sequences, 1);
  EXPECT_EQ(core_->counters().plan_violations, 0);
}

TEST_F(SchedulerCoreTest, ForeignContractIsRefusedWhileAnyWorkerLives) {
  Join("a");
  WorkerRegistration foreign = RegistrationOf("b");
  foreign.contract = ContractOf("m2");
  const absl::Status refused = core_->Register(foreign).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("model_digest"));
  EXPECT_EQ(core_->counters().registrations_refused, 1);
}

TEST_F(SchedulerCoreTest, NewContractAbortsWhatBeganUnderTheOldOne) {
  Join("a");
  AdmissionRequest old_request = Request("s1", {"b"});
  Pass(options_.lease);
  WorkerRegistration next = RegistrationOf("b");
  next.contract = ContractOf("m2");
  ASSERT_TRUE(core_->Register(next).ok());
  EXPECT_EQ(Admit(std::move(old_request))->status().code(), StatusCode::kAborted);
  EXPECT_TRUE(Admit(Request("s2", {"b"}))->ok());
}

TEST_F(SchedulerCoreTest, ContractOutlivesARestartForOneLease) {
  Join("a");
  Restart();
  WorkerRegistration foreign = RegistrationOf("b");
  foreign.contract = ContractOf("m2");
  EXPECT_FALSE(core_->Register(foreign).ok());
  Join("a");
  Restart();
  Pass(options_.lease);
  EXPECT_TRUE(core_->Register(foreign).ok());
}

TEST_F(SchedulerCoreTest, ReservationsReturnToZeroAfterAKillAndRestart) {
  Join("a");
  for (int i = 0; i < 5; ++i) Admit(Request(absl::StrCat("s", i), {"a"}));
  Restart();
  ASSERT_TRUE(core_->Register(RegistrationOf("a", 1)).ok());
  Pass(2 * options_.lease, {NameOf("a")});
  EXPECT_EQ(core_->state().running_sequences, 0);
  EXPECT_EQ(core_->accounting().blocks_charged(), 0);
  EXPECT_EQ(core_->accounting().blocks_reserved(NameOf("a")), 0);
}

}  // namespace
}  // namespace lockstep::scheduler
