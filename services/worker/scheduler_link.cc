#include "services/worker/scheduler_link.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/deadline.h"
#include "common/rpc/status_conversion.h"
#include "services/worker/codec.h"

namespace lockstep::worker {
namespace {

constexpr absl::Duration kBackoffInitial = absl::Milliseconds(50);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
constexpr absl::Duration kRegisterTimeout = absl::Seconds(2);
constexpr absl::Duration kTickPause = absl::Milliseconds(20);
constexpr absl::Duration kRefusalLogPeriod = absl::Seconds(10);
constexpr int kHeartbeatsPerLease = 4;
constexpr size_t kReportItemsMax = 16384;

base::Incarnation DrawIncarnation() {
  std::random_device device;
  const uint64_t drawn = (uint64_t{device()} << 32) | device();
  return base::Incarnation(std::max<uint64_t>(drawn, 1));
}

void FillHeld(const EngineSnapshot& snapshot,
              google::protobuf::RepeatedPtrField<v1::HeldTicket>* out) {
  for (const EngineSnapshot::Held& held : snapshot.held) {
    v1::HeldTicket* message = out->Add();
    message->set_ticket_id(held.ticket.value());
    message->set_sequence_id(held.sequence.value());
    message->set_attempt(held.attempt);
    message->set_kv_blocks(held.kv_blocks);
  }
}

void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) {
  rpc::ApplyScope({.deadline = absl::Now() + timeout}, context);
}

// Not an answer of the scheduler's.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

SchedulerLink::SchedulerLink(v1::RegisterRequest registration, Deps deps)
    : registration_(std::move(registration)),
      deps_(std::move(deps)),
      outage_("scheduler", deps_.clock, deps_.logger),
      refusal_log_(kRefusalLogPeriod),
      incarnation_(DrawIncarnation()),
      backoff_(kBackoffInitial),
      thread_([this] { Run(); }) {}

SchedulerLink::~SchedulerLink() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void SchedulerLink::Run() {
  while (!stopping()) {
    if (!deps_.engine->health().ok()) return;  // The process ends, and says so by LeaveAtOnce.
    if (alive_ && !deps_.fence->Tick()) {
      LoseLease(absl::AbortedError("the process stood still for longer than its lease"));
    }
    if (!Pause(RenewOnce())) return;
  }
}

absl::Duration SchedulerLink::RenewOnce() {
  const EngineSnapshot snapshot = deps_.engine->Snapshot();
  deps_.on_snapshot(snapshot);
  if (registered_) {
    HeartbeatOnce(snapshot);
  } else if (!alive_ && snapshot.ending) {
    return kTickPause;  // An engine that hangs in the last life is of no use to the next one.
  } else {
    // What steps of the last life reported says nothing about the next one.
    if (!alive_) deps_.report->Clear();
    RegisterOnce(snapshot);
  }
  return registered_ ? lease_ / kHeartbeatsPerLease : backoff_;
}

bool SchedulerLink::Pause(absl::Duration pause) {
  const absl::Time end = absl::Now() + pause;
  base::MutexLock lock(&mutex_);
  while (!stopping_ && absl::Now() < end) {
    changed_.WaitFor(&mutex_, std::min(kTickPause, end - absl::Now()));
    // A stall is noticed here as well; Run acts on it.
    if (alive_ && !deps_.fence->Tick()) return !stopping_;
  }
  return !stopping_;
}

void SchedulerLink::RegisterOnce(const EngineSnapshot& snapshot) {
  v1::RegisterRequest request = registration_;
  request.set_incarnation(incarnation_.value());
  FillHeld(snapshot, request.mutable_held());
  grpc::ClientContext context;
  // While a life goes on, the fence must be ticked more often than once a lease.
  SetDeadline(alive_ ? lease_ / 2 : kRegisterTimeout, &context);
  v1::RegisterResponse response;
  const absl::Status status =
      rpc::FromGrpcStatus(deps_.stub->Register(&context, request, &response));
  if (!status.ok()) {
    if (IsAway(status)) {
      outage_.Failed(status);
    } else if (refusal_log_.Pass(deps_.clock->Now())) {
      deps_.logger.Warning("register_failed", {{"error", status}});
    }
    // The incarnation may be what is refused: the next attempt is another life.
    if (absl::IsFailedPrecondition(status)) LoseLease(status);
    backoff_ = std::min(backoff_ * 2, kBackoffMax);
    return;
  }
  outage_.Works();
  backoff_ = kBackoffInitial;
  lease_ = absl::Seconds(response.lease_seconds());
  deps_.fence->Registered(incarnation_, lease_, response.scheduler_epoch(),
                          base::Epoch(response.admission_epoch()));
  registered_ = alive_ = true;
  if (draining_) AnnounceAgain();
  deps_.logger.Info("registered", {{"incarnation", incarnation_},
                                   {"scheduler_epoch", response.scheduler_epoch()},
                                   {"lease_seconds", lease_}});
  deps_.on_registered();
}

void SchedulerLink::HeartbeatOnce(const EngineSnapshot& snapshot) {
  const StepReport::Batch batch = deps_.report->Peek(kReportItemsMax);
  v1::HeartbeatRequest request;
  *request.mutable_worker() = EncodeIdentity(deps_.fence->identity());
  request.set_steps(snapshot.progress);
  request.set_idle(snapshot.idle);
  request.set_kv_blocks_free(snapshot.kv_blocks_free);
  FillHeld(snapshot, request.mutable_held());
  for (const Cut& cut : batch.cuts) {
    v1::CutReport* report = request.add_cuts();
    report->set_ticket_id(cut.ticket.value());
    report->set_begin(cut.begin);
    report->set_end(cut.end);
    report->set_length(cut.length);
  }
  for (const base::TicketId ticket : batch.ended) request.add_ended_tickets(ticket.value());
  grpc::ClientContext context;
  SetDeadline(lease_ / 2, &context);
  v1::HeartbeatResponse response;
  const absl::Status status =
      rpc::FromGrpcStatus(deps_.stub->Heartbeat(&context, request, &response));
  if (!status.ok()) return HandleHeartbeatError(status);
  outage_.Works();
  deps_.report->Acknowledge(batch);
}

void SchedulerLink::HandleHeartbeatError(const absl::Status& status) {
  if (absl::IsNotFound(status)) {
    // A restarted scheduler: it learns of this life, and of what runs, by a registration.
    registered_ = false;
    backoff_ = kBackoffInitial;
    return;
  }
  if (absl::IsFailedPrecondition(status)) return LoseLease(status);
  outage_.Failed(status);
}

void SchedulerLink::LoseLease(const absl::Status& reason) {
  deps_.logger.Warning("lease_lost", {{"incarnation", incarnation_}, {"reason", reason}});
  deps_.fence->Close();
  deps_.on_lease_lost();
  incarnation_ = DrawIncarnation();
  registered_ = alive_ = false;
}

absl::Status SchedulerLink::Leave(bool drain, v1::WorkerFault fault, absl::Duration timeout,
                                  bool* others_available) {
  v1::LeaveRequest request;
  *request.mutable_worker() = EncodeIdentity(deps_.fence->identity());
  request.set_drain(drain);
  request.set_force(!drain);
  request.set_fault(fault);
  grpc::ClientContext context;
  SetDeadline(timeout, &context);
  v1::LeaveResponse response;
  const absl::Status status = rpc::FromGrpcStatus(deps_.stub->Leave(&context, request, &response));
  if (others_available != nullptr) *others_available = response.others_available();
  return status;
}

void SchedulerLink::AnnounceAgain() {
  const absl::Status status =
      Leave(/*drain=*/true, v1::WORKER_FAULT_UNSPECIFIED, lease_ / 2, nullptr);
  if (!status.ok()) {
    deps_.logger.Warning("drain_not_announced", {{"error", status}});
  }
}

absl::StatusOr<bool> SchedulerLink::AnnounceDrain(absl::Duration timeout) {
  draining_ = true;
  bool others_available = false;
  LOCKSTEP_RETURN_IF_ERROR(
      Leave(/*drain=*/true, v1::WORKER_FAULT_UNSPECIFIED, timeout, &others_available));
  return others_available;
}

void SchedulerLink::LeaveForGood(absl::Duration timeout) {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  LeaveAtOnce(v1::WORKER_FAULT_UNSPECIFIED, timeout);
}

void SchedulerLink::LeaveAtOnce(v1::WorkerFault fault, absl::Duration timeout) {
  const absl::Status status = Leave(/*drain=*/false, fault, timeout, nullptr);
  if (!status.ok()) {
    deps_.logger.Warning("leave_failed", {{"error", status}});
  }
}

bool SchedulerLink::stopping() const {
  base::MutexLock lock(&mutex_);
  return stopping_;
}

}  // namespace lockstep::worker
