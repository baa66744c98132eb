#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/scheduler/scheduler_core.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using absl::StatusCode;
using base::RequestId;
using testing::ElementsAre;

class SchedulerOperationsTest : public SchedulerCoreTest {
 protected:
  SchedulerOperationsTest() { answering_ = false; }
  const WorkerName a_ = NameOf("a");
  const WorkerName b_ = NameOf("b");
};

TEST_F(SchedulerOperationsTest, AbortAllEndsTheQueueAndReturnsWhenAllWorkersAnswered) {
  Join("a");
  Join("b");
  Admit(Request("s1", {"a"}, 1400, 16));
  AdmissionRequest waiting = Request("s2", {"a"}, 1400, 16);
  const uint64_t handle = waiting.handle;
  Admit(std::move(waiting));
  const base::Epoch before = core_->state().epoch;
  const OperationId id = *core_->AbortAll();
  EXPECT_EQ(OutcomeOf(handle)->status().code(), StatusCode::kAborted);
  EXPECT_FALSE(ResultOf(id).has_value());
  ASSERT_EQ(all_.calls.size(), 2u);
  EXPECT_TRUE(all_.calls[0].command.abort_all);
  EXPECT_GT(all_.calls[0].admission_epoch, before);
  AnswerCalls({.aborted_sequences = 3});
  const auto result = ResultOf(id);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->aborted_sequences, 7);
  EXPECT_TRUE(result->silent_workers.empty());
}

TEST_F(SchedulerOperationsTest, RequestThatEnteredBeforeTheAbortIsAbortedWheneverItComes) {
  Join("a");
  AdmissionRequest late = Request("s1", {"a"});
  AdmissionRequest again = Request("s2", {"a"});
  ASSERT_TRUE(core_->AbortAll().ok());
  EXPECT_EQ(Admit(std::move(late))->status().code(), StatusCode::kAborted);
  Restart();
  Join("a");
  Pass(options_.lease, {a_});
  EXPECT_EQ(Admit(std::move(again))->status().code(), StatusCode::kAborted);
  EXPECT_TRUE(Admit(Request("s3", {"a"}))->ok());
}

TEST_F(SchedulerOperationsTest, RequestWithoutAnEntryEpochEntersWhenItComes) {
  Join("a");
  ASSERT_TRUE(core_->AbortAll().ok());
  AdmissionRequest request = Request("s1", {"a"}, 1400, 16);
  request.entry_epoch = base::Epoch();
  EXPECT_TRUE(Admit(std::move(request))->ok());
  AdmissionRequest waiting = Request("s2", {"a"}, 1400, 16);
  waiting.entry_epoch = base::Epoch();
  const uint64_t handle = waiting.handle;
  EXPECT_FALSE(Admit(std::move(waiting)).has_value());
  ASSERT_TRUE(core_->AbortAll().ok());
  EXPECT_EQ(OutcomeOf(handle)->status().code(), StatusCode::kAborted);
}

TEST_F(SchedulerOperationsTest, PauseInAbortModeEndsWhatWaitsAndWhatIsBetweenTwoWorkers) {
  Join("a");
  Admit(Request("s1", {"a"}, 1400, 16));
  AdmissionRequest waiting = Request("s2", {"a"}, 1400, 16);
  AdmissionRequest moving = Request("s3", {"a"});
  const uint64_t handle = waiting.handle;
  EXPECT_FALSE(Admit(std::move(waiting)).has_value());
  const OperationId id = *core_->Pause(PauseMode::kAbort);
  EXPECT_EQ(OutcomeOf(handle)->status().code(), StatusCode::kAborted);
  EXPECT_EQ(core_->state().queued_sequences, 0);
  EXPECT_EQ(Admit(std::move(moving))->status().code(), StatusCode::kAborted);
  AnswerCalls({.aborted_sequences = 1});
  EXPECT_EQ(ResultOf(id)->aborted_sequences, 2);
  // What comes during the pause waits for its end.
  AdmissionRequest later = Request("s4", {"a"});
  const uint64_t later_handle = later.handle;
  EXPECT_FALSE(Admit(std::move(later)).has_value());
  ASSERT_TRUE(core_->Resume().ok());
  EXPECT_TRUE(OutcomeOf(later_handle)->ok());
}

TEST_F(SchedulerOperationsTest, PausesInOtherModesKeepWhatWaits) {
  for (const PauseMode mode : {PauseMode::kWait, PauseMode::kKeep}) {
    Restart();
    Join("a");
    Pass(options_.lease, {a_});
    ASSERT_TRUE(core_->Pause(mode).ok());
    AdmissionRequest waiting = Request("s1", {"a"});
    const uint64_t handle = waiting.handle;
    EXPECT_FALSE(Admit(std::move(waiting)).has_value());
    ASSERT_TRUE(core_->Pause(mode).ok());
    EXPECT_FALSE(OutcomeOf(handle).has_value());
    ASSERT_TRUE(core_->Resume().ok());
    EXPECT_TRUE(OutcomeOf(handle)->ok());
    core_->Release({(*OutcomeOf(handle))->id});
    all_ = {};
  }
}

TEST_F(SchedulerOperationsTest, TicketRefusedAsStaleIsAdmittedAgainAfterAPause) {
  Join("a");
  AdmissionRequest request = Request("s1", {"a"});
  AdmissionRequest again = request;
  const Ticket ticket = **Admit(std::move(request));
  ASSERT_TRUE(core_->Pause(PauseMode::kWait).ok());
  core_->Release({ticket.id});
  ASSERT_TRUE(core_->Resume().ok());
  again.attempt = ticket.attempt;
  again.handle = 1000;
  const auto second = Admit(std::move(again));
  ASSERT_TRUE(second.has_value() && second->ok());
  EXPECT_EQ((*second)->attempt, 2);
  EXPECT_GT((*second)->epoch, ticket.epoch);
}

// As a router asks for what has never had a ticket.
AdmissionRequest Newcomer(AdmissionRequest request) {
  request.entry_epoch = base::Epoch();
  return request;
}

TEST_F(SchedulerOperationsTest, AbortByIdEndsAndCountsWhatWaitsAndWhatComesBeforeItsAnswer) {
  Join("a");
  const Ticket running = **Admit(Newcomer(Request("s1", {"a"}, 1400, 16)));
  AdmissionRequest queued = Request("s2", {"a"}, 1400, 16);
  const uint64_t handle = queued.handle;
  Admit(Newcomer(std::move(queued)));
  const OperationId id = *core_->Abort({RequestId("s1"), RequestId("s2"), RequestId("nobody")});
  EXPECT_EQ(OutcomeOf(handle)->status().code(), StatusCode::kAborted);
  EXPECT_EQ(Admit(Newcomer(Request("s2", {"a"})))->status().code(), StatusCode::kAborted);
  AnswerCalls({.aborted_sequences = 1, .known_requests = {RequestId("s1")}});
  core_->Release({running.id});
  core_->Admit({});
  const auto result = ResultOf(id);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->aborted_sequences, 3);
  EXPECT_EQ(result->unknown_requests, 1);
}

TEST_F(SchedulerOperationsTest, RequestUnderAnAbortedIdRunsAtOnceAfterTheAnswer) {
  Join("a");
  const Ticket first = **Admit(Newcomer(Request("s1", {"a"})));
  Hold(first, 11);
  Pass(options_.lease / 4, {a_});  // The worker has reported it: no ticket is on its way.
  const OperationId id = *core_->Abort({RequestId("s1"), RequestId("nobody")});
  AnswerCalls({.aborted_sequences = 1, .known_requests = {RequestId("s1")}});
  ASSERT_TRUE(ResultOf(id).has_value());
  EXPECT_EQ(ResultOf(id)->unknown_requests, 1);
  for (const char* name : {"s1", "nobody"}) {
    const auto again = Admit(Newcomer(Request(name, {"a"})));
    ASSERT_TRUE(again.has_value() && again->ok()) << name;
    // And stays alive when it moves.
    AdmissionRequest moved = Request(name, {"a"});
    moved.entry_epoch = (*again)->epoch;
    moved.attempt = 1;
    EXPECT_TRUE(Admit(std::move(moved))->ok()) << name;
  }
  // What was between two workers when the abort came ends whenever it comes.
  AdmissionRequest old = Request("s1", {"a"});
  old.entry_epoch = first.epoch;
  old.attempt = 1;
  EXPECT_EQ(Admit(std::move(old))->status().code(), StatusCode::kAborted);
}

TEST_F(SchedulerOperationsTest, TicketOnItsWayAtAnAbortBelongsIntoItsAnswer) {
  Join("a");
  const Ticket ticket = **Admit(Newcomer(Request("s1", {"a"})));
  const OperationId id = *core_->Abort({RequestId("s1")});
  AnswerCalls();
  EXPECT_FALSE(ResultOf(id).has_value());
  // The worker refused it, and the router asks again with the same message.
  AdmissionRequest again = Request("s1", {"a"});
  again.entry_epoch = ticket.epoch;
  again.attempt = 1;
  core_->Release({ticket.id});
  EXPECT_EQ(Admit(std::move(again))->status().code(), StatusCode::kAborted);
  ASSERT_TRUE(ResultOf(id).has_value());
  EXPECT_EQ(ResultOf(id)->aborted_sequences, 1);
  EXPECT_EQ(ResultOf(id)->unknown_requests, 0);
}

TEST_F(SchedulerOperationsTest, AbortsOfManyIdsInARowBeginOneEpoch) {
  Join("a");
  for (const char* name : {"s1", "s2", "s3"}) {
    Hold(**Admit(Newcomer(Request(name, {"a"}, 160, 16))), 11);
  }
  Pass(options_.lease / 4, {a_});
  const base::Epoch before = core_->state().epoch;
  for (const char* name : {"s1", "s2", "s3", "nobody"}) {
    ASSERT_TRUE(core_->Abort({RequestId(name)}).ok());
    AnswerCalls();
  }
  EXPECT_EQ(core_->state().epoch.value(), before.value() + 1);
}

TEST_F(SchedulerOperationsTest, AbortOfATicketOnItsWayMakesItStale) {
  Join("a");
  ASSERT_TRUE(core_->Abort({RequestId("other")}).ok());  // Once a start: what an earlier one knew.
  Admit(Request("s1", {"a"}));
  const base::Epoch before = core_->state().epoch;
  ASSERT_TRUE(core_->Abort({RequestId("other")}).ok());
  EXPECT_EQ(core_->state().epoch, before);
  ASSERT_TRUE(core_->Abort({RequestId("s1")}).ok());
  EXPECT_GT(core_->state().epoch, before);
}

TEST_F(SchedulerOperationsTest, SilentWorkerIsListedAndLosesItsLease) {
  Join("a");
  Join("b");
  const OperationId id = *core_->AbortAll();
  Collect();
  core_->OnControlReply(id, a_, ControlReply{.aborted_sequences = 1});
  Pass(options_.control_timeout - absl::Milliseconds(100), {a_, b_});
  EXPECT_FALSE(ResultOf(id).has_value());
  Pass(absl::Milliseconds(100), {a_, b_});
  const auto result = ResultOf(id);
  ASSERT_TRUE(result.has_value());
  EXPECT_THAT(result->silent_workers, ElementsAre(base::WorkerId("b")));
  EXPECT_EQ(core_->Workers().size(), 1u);
  EXPECT_EQ(core_->Heartbeat({.name = b_, .idle = true}).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(SchedulerOperationsTest, FailedCallIsMadeAgain) {
  Join("a");
  const OperationId id = core_->FlushCache(std::nullopt);
  Collect();
  all_.calls.clear();
  core_->OnControlReply(id, a_, absl::UnavailableError("not yet"));
  Pass(absl::Milliseconds(100), {a_});
  Collect();
  ASSERT_EQ(all_.calls.size(), 1u);
  AnswerCalls({.freed_blocks = 4});
  EXPECT_EQ(ResultOf(id)->freed_blocks, 4);
}

TEST_F(SchedulerOperationsTest, LostWorkerDoesNotKeepAnOperationWaiting) {
  Join("a");
  const OperationId id = *core_->AbortAll();
  ASSERT_TRUE(core_->Leave(a_).ok());
  EXPECT_TRUE(ResultOf(id)->silent_workers.empty());
}

TEST_F(SchedulerOperationsTest, PauseInWaitModeReturnsOnlyAfterTheDrain) {
  Join("a");
  const Ticket ticket = **Admit(Request("s1", {"a"}));
  Hold(ticket, 5);
  Pass(absl::Milliseconds(100), {a_});
  const OperationId id = *core_->Pause(PauseMode::kWait);
  AnswerCalls();
  Pass(2 * options_.lease, {a_});
  EXPECT_FALSE(ResultOf(id).has_value());
  held_.clear();
  Pass(absl::Milliseconds(100), {a_});
  EXPECT_TRUE(ResultOf(id)->status.ok());
}

TEST_F(SchedulerOperationsTest, NothingIsAdmittedWhilePausedEvenOverARestart) {
  Join("a");
  ASSERT_TRUE(core_->Pause(PauseMode::kKeep).ok());
  AnswerCalls();
  AdmissionRequest waiting = Request("s1", {"a"});
  uint64_t handle = waiting.handle;
  EXPECT_FALSE(Admit(std::move(waiting)).has_value());
  Restart();
  Join("a");
  Pass(2 * options_.lease, {a_});
  EXPECT_EQ(core_->state().pause, PauseMode::kKeep);
  AdmissionRequest more = Request("s2", {"a"});
  handle = more.handle;
  EXPECT_FALSE(Admit(std::move(more)).has_value());
  ASSERT_TRUE(core_->Resume().ok());
  ASSERT_TRUE(OutcomeOf(handle).has_value());
  EXPECT_EQ((*OutcomeOf(handle))->epoch, core_->state().epoch);
}

TEST_F(SchedulerOperationsTest, KeepHoldsWorkersAndResumeLetsThemGo) {
  Join("a");
  ASSERT_TRUE(core_->Pause(PauseMode::kKeep).ok());
  Collect();
  ASSERT_EQ(all_.calls.size(), 1u);
  EXPECT_TRUE(all_.calls[0].command.hold);
  const ControlCall held = all_.calls[0];
  all_.calls.clear();
  ASSERT_TRUE(core_->Resume().ok());
  // The first call is made again after the resume: it must not hold the worker once more.
  core_->OnControlReply(held.operation, a_, absl::UnavailableError("lost"));
  Pass(absl::Milliseconds(100), {a_});
  Collect();
  ASSERT_EQ(all_.calls.size(), 2u);
  for (const ControlCall& call : all_.calls) EXPECT_FALSE(call.command.hold);
}

TEST_F(SchedulerOperationsTest, ResumeEndsAPauseThatStillWaits) {
  Join("a");
  Hold(**Admit(Request("s1", {"a"})), 5);
  Pass(absl::Milliseconds(100), {a_});
  const OperationId id = *core_->Pause(PauseMode::kWait);
  AnswerCalls();
  ASSERT_TRUE(core_->Resume().ok());
  EXPECT_EQ(ResultOf(id)->status.code(), StatusCode::kAborted);
}

TEST_F(SchedulerOperationsTest, WorkerThatComesBackWithSequencesIsToldOfTheLastAbort) {
  Join("a");
  const Ticket ticket = **Admit(Request("s1", {"a"}));
  ASSERT_TRUE(core_->AbortAll().ok());
  const base::Epoch aborted = core_->state().epoch;
  ASSERT_TRUE(core_->Pause(PauseMode::kWait).ok());
  Restart();
  Collect();
  all_.calls.clear();
  WorkerRegistration again = RegistrationOf("a", 1);
  again.held = {{.ticket = ticket.id, .kv_blocks = 5}};
  ASSERT_TRUE(core_->Register(again).ok());
  Collect();
  ASSERT_EQ(all_.calls.size(), 1u);
  EXPECT_TRUE(all_.calls[0].command.abort_all);
  // Not the newer epoch of the pause, which would end more than was aborted.
  EXPECT_EQ(all_.calls[0].admission_epoch, aborted);
}

TEST_F(SchedulerOperationsTest, PauseDuringRecoveryWaitsForWorkersThatHaveNotReportedYet) {
  Join("a");
  const Ticket ticket = **Admit(Request("s1", {"a"}));
  Restart();
  const OperationId id = *core_->Pause(PauseMode::kWait);
  Pass(absl::Seconds(1));
  EXPECT_FALSE(ResultOf(id).has_value());
  WorkerRegistration again = RegistrationOf("a", 1);
  again.held = {{.ticket = ticket.id, .kv_blocks = 5}};
  ASSERT_TRUE(core_->Register(again).ok());
  AnswerCalls();
  Hold(ticket, 5);
  Pass(options_.lease, {a_});
  EXPECT_FALSE(ResultOf(id).has_value());
  held_.clear();
  Pass(absl::Milliseconds(100), {a_});
  EXPECT_TRUE(ResultOf(id)->status.ok());
}

TEST_F(SchedulerOperationsTest, WorkerThatComesDuringALongDrainHasItsOwnTimeToAnswer) {
  Join("a");
  Hold(**Admit(Request("s1", {"a"})), 5);
  Pass(absl::Milliseconds(100), {a_});
  const OperationId id = *core_->Pause(PauseMode::kWait);
  AnswerCalls();
  Pass(2 * options_.control_timeout, {a_});
  Join("b");
  Pass(absl::Milliseconds(200), {a_, b_});
  EXPECT_EQ(core_->Workers().size(), 2u);
  AnswerCalls();
  held_.clear();
  Pass(absl::Milliseconds(100), {a_, b_});
  EXPECT_TRUE(ResultOf(id)->silent_workers.empty());
}

TEST_F(SchedulerOperationsTest, WorkerThatHeldForAnEarlierSchedulerIsLetGo) {
  Join("a");
  ASSERT_TRUE(core_->Pause(PauseMode::kKeep).ok());
  ASSERT_TRUE(core_->Resume().ok());  // The worker never hears of it.
  Restart();
  Collect();
  all_.calls.clear();
  ASSERT_TRUE(core_->Register(RegistrationOf("a", 1)).ok());
  Collect();
  ASSERT_EQ(all_.calls.size(), 1u);
  EXPECT_FALSE(all_.calls[0].command.hold);
}

TEST_F(SchedulerOperationsTest, OperationThatCannotBeMadeDurableChangesNothing) {
  Join("a");
  const base::Epoch before = core_->state().epoch;
  store_.fail = absl::InternalError("disk full");
  EXPECT_FALSE(core_->AbortAll().ok());
  EXPECT_FALSE(core_->Pause(PauseMode::kWait).ok());
  EXPECT_EQ(core_->state().epoch, before);
  EXPECT_EQ(core_->state().pause, std::nullopt);
  EXPECT_TRUE(Admit(Request("s1", {"a"}))->ok());
}

}  // namespace
}  // namespace lockstep::scheduler
