#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/log/logger.h"
#include "services/router/advance_stock.h"
#include "services/router/poison_ward.h"
#include "services/router/route_policy.h"
#include "services/router/router_actions.h"
#include "services/router/router_metrics.h"
#include "services/router/sequence_ledger.h"
#include "services/router/worker_table.h"

namespace lockstep::router {

struct RouterCoreOptions {
  int64_t affinity_tokens = 256;
  int64_t poison_limit = 2;
  int64_t sequences_max = 131072;
  int64_t prompt_bytes_max = int64_t{256} << 20;
  // Samples of a group that are placed as one; larger groups are spread.
  int64_t group_unit = 16;
  absl::Duration back_off_initial = absl::Milliseconds(50);
  absl::Duration back_off_max = absl::Seconds(1);
  // An admission that waited this long is asked for again when a worker joins.
  absl::Duration reconsider_after = absl::Milliseconds(100);
  absl::Duration stream_idle_max = absl::Seconds(60);
  // What the scheduler is told while nobody waits for its answer, it is told after so many
  // sequences or so long.
  size_t reports_max = 8;
  absl::Duration report_delay = absl::Milliseconds(10);
  WorkerTable::Options workers;
};

struct RouterCoreDeps {
  const RoutePolicy* policy = nullptr;
  const base::Clock* clock = nullptr;
  RouterMetrics* metrics = nullptr;
  log::Logger logger;
};

// Everything the router decides: which worker a sequence is offered to, what of a worker's results
// a gateway sees, and how a sequence goes on when its worker does not. Events go in, actions come
// out; no I/O, no threads, no time but the clock's. Not thread-safe.
//
//   core.Open(gateway, std::move(opens));
//   Send(core.TakeActions());     // after each event, or after several
//   WakeAt(core.NextWakeup());    // then core.Tick()
//
// Promises: each opened sequence ends exactly once; each granted ticket is released exactly once;
// no position reaches a gateway twice, and none is left out.
class RouterCore {
 public:
  RouterCore(RouterCoreOptions options, RouterCoreDeps deps);

  // From gateways. Samples of a group stand next to each other.
  void Open(GatewayId gateway, std::vector<OpenSequence> opens);
  void Cancel(GatewayId gateway, uint64_t handle);
  void AddCredit(GatewayId gateway, uint64_t handle, int64_t tokens);
  void GatewayLost(GatewayId gateway);  // Its sequences end without a word.

  // From the scheduler.
  void SchedulerConnected();
  void SchedulerLost();
  void ApplySnapshot(const std::vector<WorkerState>& workers);
  void TicketGranted(uint64_t admit_handle, Ticket ticket);
  void TicketGrantedAhead(AdvanceTicket ticket);
  void EpochSeen(base::Epoch epoch);
  void AdmissionFailed(uint64_t admit_handle, const absl::Status& error);
  void WorkerLost(const WorkerKey& worker);

  // From workers.
  void FrameCame(StreamId stream, WorkerFrame frame);
  void StreamClosed(StreamId stream, const absl::Status& status);

  // Time has passed; to be called at NextWakeup() at the latest.
  void Tick();
  absl::Time NextWakeup();

  // What has to be sent since the last call. Tickets to release are kept while the scheduler is
  // away.
  RouterActions TakeActions();

  size_t sequence_count() const { return ledger_.size(); }

 private:
  using Records = std::vector<SequenceRecord*>;

  // RESOURCE_EXHAUSTED, with a retry delay, when the router holds as much as it may.
  absl::Status CheckRoomFor(const SequenceSpec& spec) const;

  // Asks for tickets for all that wait and may go. Each public event ends with it.
  void PlaceWaiting();
  void Admit(SequenceRecord* record, const RouteChoice& choice);
  // Starts a newcomer with a ticket from the stock. False when it has to be asked for.
  bool StartAhead(SequenceRecord* record, const RouteChoice& choice);
  AdmitRequest RequestFor(const SequenceRecord& record) const;
  void Run(SequenceRecord* record, WorkerTable::Row* row, Ticket ticket);
  void Start(SequenceRecord* record, WorkerTable::Row* row);
  WorkerBatch& BatchFor(WorkerTable::Row* row);

  // Gives up the record's admission or ticket. Afterwards it waits.
  void Withdraw(SequenceRecord* record);
  void GiveBack(const std::vector<base::TicketId>& tickets);
  // What the scheduler is owed may wait: it has room, or it would not have granted ahead.
  bool MayReportLater(const RouterActions& actions);
  void GiveUpTicket(SequenceRecord* record, absl::Time retry_at);
  void CancelAtWorker(const SequenceRecord& record);
  // Gives up whatever the record holds, and tells the worker.
  void Stop(SequenceRecord* record);

  void AcceptDelta(SequenceRecord* record, SequenceDelta delta);
  void Refused(SequenceRecord* record, const absl::Status& error);
  // The running attempt is over; goes on elsewhere, unless the budget is spent.
  void Failover(SequenceRecord* record, FailoverCause cause, const absl::Status& why);
  // Charged to the budget; at once the first time.
  void Retry(SequenceRecord* record, const absl::Status& why);
  // Not charged: the deadline is the limit. Always waits.
  void BackOff(SequenceRecord* record, absl::Duration delay_min);
  void LoseWorker(const WorkerKey& worker, bool blame);
  void CloseStream(WorkerTable::Row* row);
  // Judges those that were on one dying worker and on others before: a single one is ended, several
  // go to the ward.
  void JudgeSuspects(const Records& suspects);

  // The record must hold neither ticket nor admission.
  void End(SequenceRecord* record, SequenceEnd end, SequenceDelta last = {});
  void EndWithError(SequenceRecord* record, absl::Status error);
  void EndAborted(SequenceRecord* record);
  void Close(SequenceRecord* record);
  void Deliver(const SequenceRecord& record, SequenceDelta delta);

  log::Logger LoggerOf(const SequenceRecord& record) const;

  const RouterCoreOptions options_;
  const RouterCoreDeps deps_;
  SequenceLedger ledger_;
  WorkerTable table_;
  PoisonWard ward_;  // Its suspects wait with an infinite retry_at.
  AdvanceStock stock_;
  absl::Time report_at_ = absl::InfiniteFuture();  // While something is held back.
  absl::flat_hash_map<StreamId, WorkerKey> streams_;
  uint64_t last_stream_ = 0;
  bool scheduler_connected_ = false;
  RouterActions actions_;
  absl::flat_hash_map<StreamId, size_t> batch_index_;  // In actions_.workers.
};

}  // namespace lockstep::router
