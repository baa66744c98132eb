#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "services/scheduler/aborted_requests.h"
#include "services/scheduler/accounting.h"
#include "services/scheduler/admission_queue.h"
#include "services/scheduler/advance_tickets.h"
#include "services/scheduler/decisions.h"
#include "services/scheduler/fingerprint_gate.h"
#include "services/scheduler/plan_audit.h"
#include "services/scheduler/state_store.h"
#include "services/scheduler/ticket_ledger.h"
#include "services/scheduler/worker_registry.h"

namespace lockstep::scheduler {

// Ties registry, gate, accounting, queue, ledger and audit together: events go in by its methods,
// what has to be done comes out by TakeDecisions() after each of them. It owns no thread and makes
// no call. Not thread-safe: the shell holds one mutex around it. Example:
//   core->Admit(std::move(requests));
//   for (const AdmitOutcome& outcome : core->TakeDecisions().outcomes) …
//
// Tick() must come at least every quarter of a lease. A longer gap means that the scheduler itself
// stood still, and then nobody's lease ends before its holder had time to renew it.
class SchedulerCore {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(3);
    absl::Duration ticket_expiry = absl::Seconds(5);
    absl::Duration control_timeout = absl::Seconds(3);  // For a worker's answer to a command.
    int64_t advance_tickets = 0;                        // Of one router on one worker at most.
    bool normal_mode = false;                           // Of the workers that may join.
    AdmissionQueue::Options queue;
    Accounting::Options accounting;
    AbortedRequests::Options aborted;
  };
  struct RegisterAnswer {
    uint64_t scheduler_epoch = 0;
    base::Epoch admission_epoch;
  };

  // Takes office: counts the scheduler's epoch up and saves it. When there was a scheduler before,
  // nothing is granted for one lease, so that every worker that may still run something has
  // reported, or is gone.
  static absl::StatusOr<std::unique_ptr<SchedulerCore>> Create(Options options,
                                                               const base::Clock* clock,
                                                               StateStore* store);

  // Errors as SchedulerService.Register documents them.
  absl::StatusOr<RegisterAnswer> Register(const WorkerRegistration& registration);
  // Errors as SchedulerService.Heartbeat documents them. A report with a cut outside its plan ends
  // the lease.
  absl::StatusOr<base::Epoch> Heartbeat(const WorkerReport& report);
  // Whether another worker can take over. Without one, and not forced, a drain does not begin.
  absl::StatusOr<bool> Drain(const WorkerName& name, bool force);
  // A worker that says why it failed is heard even when its lease has expired before: an engine
  // that hangs loses its lease long before its process gives it up.
  absl::StatusOr<bool> Leave(const WorkerName& name, LeaseEnd why = LeaseEnd::kLeft);

  // Each request gets exactly one outcome, unless it is withdrawn or its stream closed before.
  void Admit(std::vector<AdmissionRequest> requests);
  // Sequences that run with advance tickets. Tickets that are not such, or have ended, are ignored.
  void Use(const std::vector<AdmissionRequest>& requests);
  // A request that was granted meanwhile is not touched.
  void Withdraw(RouterStream stream, const std::vector<uint64_t>& handles);
  // Tickets that ended or will not be used; unknown ones are ignored. Operations that waited for
  // them finish at the next Admit, which may bring their sequences back, or Tick.
  void Release(const std::vector<base::TicketId>& tickets);
  // Drops what the stream has waiting. Its tickets live until their workers report them gone; those
  // for sequences still to come, until no router would start with them any more.
  void CloseStream(RouterStream stream);

  // Operations finish by Decisions::finished, possibly of the same call; at the latest when the
  // control timeout has passed, but a pause in wait mode only when nothing runs any longer, and
  // none before a restarted scheduler has heard of every worker. An error means that nothing was
  // begun.
  absl::StatusOr<OperationId> AbortAll();
  absl::StatusOr<OperationId> Abort(const std::vector<base::RequestId>& requests);
  absl::StatusOr<OperationId> Pause(PauseMode mode);
  absl::StatusOr<OperationId> Resume();
  OperationId FlushCache(std::optional<std::string> cache_namespace);
  void OnControlReply(OperationId operation, const WorkerName& worker,
                      const absl::StatusOr<ControlReply>& reply);

  // Lets time have its effects: leases, deadlines, expiries, the end of recovery.
  void Tick();

  Decisions TakeDecisions();

  // Ascending by worker id.
  std::vector<WorkerView> Workers() const;
  CoreState state() const;
  CoreCounters counters() const;
  const std::optional<Contract>& contract() const { return gate_.contract(); }
  const WorkerRegistry& registry() const { return registry_; }
  const Accounting& accounting() const { return accounting_; }
  const AdmissionQueue& queue() const { return queue_; }

 private:
  struct Operation {
    ControlRound round;
    ControlCommand command;
    base::Epoch epoch;  // When it began.
    OperationResult result;
    absl::flat_hash_set<base::RequestId> aborting;  // Of Abort by ids.
    absl::flat_hash_set<base::RequestId> known;     // Of these: ended here, not by a worker.
    bool drains = false;                            // A pause in wait mode.
    // Advance tickets that were out when an abort began. What starts with one of them counts as
    // older than the abort.
    std::vector<base::TicketId> advance;
    // Of the requests that are aborted, on their way when the abort began.
    std::vector<base::TicketId> under_way;
    bool reported = true;  // Somebody waits for the result.
  };
  struct Largest {
    int64_t kv_blocks = 0;
    int64_t kv_block_tokens = 1;
    int64_t context_tokens_max = 0;
  };

  SchedulerCore(Options options, const base::Clock* clock, StateStore* store,
                const PersistentState& state, absl::Time recovering_until);

  absl::Status SaveState(PersistentState next);
  absl::Status SetContract(const Contract& contract, FingerprintGate::Decision decision);
  // What a worker says it holds is true, even where the ticket was taken for ended or was granted
  // before a restart; a number that was never granted on this worker is not believed.
  void AdoptHeld(const WorkerRegistry::Worker& worker, const std::vector<HeldTicket>& held,
                 bool believe_all);
  void AdoptReported(const WorkerReport& report);
  absl::Status AuditReport(const WorkerReport& report);
  void EndTickets(const std::vector<base::TicketId>& tickets, const WorkerName& worker);
  // The rest of what the end of a lease means, once the registry has forgotten the worker.
  void OnLeaseEnded(const WorkerName& name, LeaseEnd why);
  void UpdateLargest();

  void Decide(AdmissionRequest request);
  absl::Status CheckWanted(const AdmissionRequest& request);
  absl::Status CheckPossible(AdmissionRequest& request) const;
  bool TryGrant(const AdmissionRequest& request, const WorkerName& worker, absl::Duration waited);
  Ticket MakeTicket(base::TicketId id, const WorkerRegistry::Worker& worker) const;
  // What the ticket's sequence is charged and judged by.
  void Account(base::TicketId id, const WorkerRegistry::Worker& worker,
               const AdmissionRequest& request);
  // Refills the router's stock of tickets on a worker, unless somebody could want the room.
  void GrantAhead(RouterStream stream, const WorkerName& name);
  // Ends advance tickets whose router has gone and, were it still there, would not use them.
  void EndOrphans();
  void Refuse(const AdmissionRequest& request, absl::Status status, absl::Duration waited);
  void RefuseAll(const std::vector<AdmissionQueue::Waiting>& waiting, const absl::Status& status);
  // Offers the room of workers whose room has changed to those who wait.
  void ServeQueue();
  void EndRecovery();
  bool granting() const { return !recovering_ && !state_.pause.has_value(); }

  // Sends `command` to all living workers.
  Operation& Begin(const ControlCommand& command);
  absl::Status BumpEpoch(PersistentState next);
  // Refuses those in the queue that entered before the abort epoch, and counts them.
  int64_t AbortQueued();
  // True, and counted, while an abort of its id is not answered yet.
  bool CountIfAborting(const base::RequestId& request);
  // A sequence started with an advance ticket that was out when the abort of its request began.
  void AwaitIfAborting(const AdmissionRequest& used);
  // No ticket with which a sequence that the operation is to end could still start.
  bool TicketsAreBack(Operation* operation) const;
  void SendTo(const WorkerRegistry::Worker& worker, OperationId operation, base::Epoch epoch,
              ControlCommand command);
  // Ends the leases of workers that kept silent, and calls others again whose call failed.
  void TickOperations();
  // A worker that comes while operations are under way takes part in them. One that may have missed
  // earlier ones hears of the last abort of everything, and whether to hold.
  void JoinOperations(const WorkerRegistry::Worker& worker, bool may_have_missed);
  bool holding() const { return state_.pause == PauseMode::kKeep; }
  void FinishOperations();
  // What may follow from any event that ended something.
  void Settle() {
    ServeQueue();
    FinishOperations();
  }

  const Options options_;
  const base::Clock* const clock_;
  StateStore* const store_;
  PersistentState state_;
  bool recovering_;
  absl::Time recovering_until_;
  absl::Time last_tick_;

  WorkerRegistry registry_;
  FingerprintGate gate_;
  Accounting accounting_;
  AdmissionQueue queue_;
  TicketLedger ledger_;
  AdvanceTickets advance_;               // Also in the ledger.
  std::vector<base::TicketId> orphans_;  // Of these, those whose router's stream has ended.
  PlanAudit audit_;
  AbortedRequests aborted_;
  std::map<OperationId, Operation> operations_;
  uint64_t operation_count_ = 0;
  Largest largest_;                      // Over living workers.
  absl::btree_set<WorkerName> changed_;  // Workers whose room has grown since the last ServeQueue.
  CoreCounters counters_;
  Decisions decisions_;
};

}  // namespace lockstep::scheduler
