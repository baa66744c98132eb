#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/scheduler/control_round.h"
#include "services/scheduler/types.h"
#include "services/scheduler/worker_registry.h"

// What the core wants done after an event. The shell, or a simulation, carries it out in order.
namespace lockstep::scheduler {

// An Abort, Pause, Resume or FlushCache that was begun and will finish later.
using OperationId = base::StrongId<struct OperationIdTag, uint64_t>;

// The fate of one admission request.
struct AdmitOutcome {
  RouterStream stream;
  uint64_t handle = 0;
  base::SequenceId sequence;
  base::RequestId request;
  std::string trace_id;
  absl::StatusOr<Ticket> ticket;
  absl::Duration waited;  // Since the request came.
};

// A ticket for a sequence that is still to come: prompt and new tokens at most tokens_max.
struct AdvanceGrant {
  RouterStream stream;
  Ticket ticket;  // Of no sequence; the plan's length is 0.
  int64_t tokens_max = 0;
};

struct LostWorker {
  WorkerName name;
  LeaseEnd why = LeaseEnd::kExpired;
};

// A call to make; its result comes back by SchedulerCore::OnControlReply.
struct ControlCall {
  OperationId operation;
  WorkerName worker;
  std::string address;
  uint64_t scheduler_epoch = 0;
  base::Epoch admission_epoch;
  ControlCommand command;
};

struct OperationResult {
  OperationId operation;
  absl::Status status;
  int64_t aborted_sequences = 0;  // Queued and running.
  int64_t unknown_requests = 0;
  int64_t freed_blocks = 0;
  std::vector<base::WorkerId> silent_workers;
  base::Epoch epoch;
};

struct Decisions {
  std::vector<AdmitOutcome> outcomes;
  std::vector<AdvanceGrant> advance;
  std::vector<AdmissionRequest> used;  // Advance tickets, for the log.
  std::vector<LostWorker> lost;
  std::vector<ControlCall> calls;
  std::vector<OperationResult> finished;
  std::vector<std::string> violations;  // For the log.
  bool workers_changed = false;         // A worker came, went, or drains.
  bool epoch_changed = false;           // The admission epoch.
};

// Since construction; never go down.
struct CoreCounters {
  int64_t granted = 0;                // To a sequence; an advance ticket counts when it is used.
  int64_t used_advance = 0;           // Of these.
  std::array<int64_t, 17> refused{};  // By absl::StatusCode.
  std::array<int64_t, kLeaseEnds> leases_ended{};  // By LeaseEnd.
  int64_t registered = 0;
  int64_t registrations_refused = 0;
  int64_t cuts = 0;
  int64_t plan_violations = 0;
};

// One living worker as routers see it.
struct WorkerView {
  WorkerName name;
  std::string address;
  std::string metrics_address;
  int64_t running_sequences = 0;  // Tickets.
  int64_t kv_blocks_free = 0;     // Not promised.
  int64_t kv_blocks = 0;
  bool draining = false;
  absl::Duration lease;
};

struct CoreState {
  std::optional<PauseMode> pause;
  base::Epoch epoch;
  uint64_t scheduler_epoch = 0;
  int64_t running_sequences = 0;
  int64_t queued_sequences = 0;
  bool recovering = false;  // Restarted less than a lease ago: nothing is granted yet.
};

}  // namespace lockstep::scheduler
