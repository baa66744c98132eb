#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/base/status_macros.h"
#include "services/scheduler/scheduler_core.h"

// Abort, Pause, Resume, FlushCache: what concerns every worker at once.
namespace lockstep::scheduler {

absl::StatusOr<OperationId> SchedulerCore::AbortAll() {
  PersistentState next = state_;
  next.abort_epoch = base::Epoch(state_.admission_epoch.value() + 1);
  LOCKSTEP_RETURN_IF_ERROR(BumpEpoch(std::move(next)));
  const int64_t queued = AbortQueued();
  Operation& operation = Begin({.abort_all = true});
  operation.result.aborted_sequences = queued;
  const OperationId id = operation.result.operation;
  Settle();
  return id;
}

int64_t SchedulerCore::AbortQueued() {
  const std::vector<AdmissionQueue::Waiting> queued = queue_.TakeIf(
      [&](const AdmissionRequest& request) { return request.entry_epoch < state_.abort_epoch; });
  RefuseAll(queued, absl::AbortedError("everything was aborted"));
  return static_cast<int64_t>(queued.size());
}

absl::StatusOr<OperationId> SchedulerCore::Abort(const std::vector<base::RequestId>& requests) {
  const absl::flat_hash_set<base::RequestId> ids(requests.begin(), requests.end());
  // A ticket that is still on its way would start after the worker was asked; a newer epoch makes
  // the worker refuse it, and its admission is asked for again and refused here. Whose an advance
  // ticket is, nobody here knows yet. And what entered before must be older than what comes later.
  std::vector<base::TicketId> under_way = ledger_.Unseen(ids);
  if (!under_way.empty() || advance_.size() > 0 || aborted_.EnteredNow(ids)) {
    LOCKSTEP_RETURN_IF_ERROR(BumpEpoch(state_));
  }
  for (const base::RequestId& request : ids) {
    aborted_.Add(request, state_.admission_epoch, clock_->Now());
  }
  const std::vector<AdmissionQueue::Waiting> queued =
      queue_.TakeIf([&](const AdmissionRequest& request) { return ids.contains(request.request); });
  RefuseAll(queued, absl::AbortedError("the request was aborted"));

  Operation& operation = Begin({.abort_requests = requests});
  operation.result.aborted_sequences = static_cast<int64_t>(queued.size());
  for (const AdmissionQueue::Waiting& one : queued) operation.known.insert(one.request.request);
  operation.aborting = ids;
  operation.under_way = std::move(under_way);
  const OperationId id = operation.result.operation;
  Settle();
  return id;
}

bool SchedulerCore::CountIfAborting(const base::RequestId& request) {
  bool aborting = false;
  for (auto& [id, operation] : operations_) {
    if (!operation.aborting.contains(request)) continue;
    operation.known.insert(request);
    // Of several the first one has ended it.
    if (!aborting) ++operation.result.aborted_sequences;
    aborting = true;
  }
  return aborting;
}

void SchedulerCore::AwaitIfAborting(const AdmissionRequest& used) {
  for (auto& [id, operation] : operations_) {
    if (operation.aborting.contains(used.request) &&
        std::find(operation.advance.begin(), operation.advance.end(), used.used_ticket) !=
            operation.advance.end()) {
      operation.under_way.push_back(used.used_ticket);
    }
  }
}

absl::StatusOr<OperationId> SchedulerCore::Pause(PauseMode mode) {
  PersistentState next = state_;
  next.pause = mode;
  const bool aborts = mode == PauseMode::kAbort;
  // Whatever entered before the pause ends, also what waits or is between two workers.
  if (aborts) next.abort_epoch = base::Epoch(state_.admission_epoch.value() + 1);
  LOCKSTEP_RETURN_IF_ERROR(BumpEpoch(std::move(next)));
  const int64_t queued = aborts ? AbortQueued() : 0;
  Operation& operation = Begin({.abort_all = aborts});
  operation.result.aborted_sequences = queued;
  operation.drains = mode == PauseMode::kWait;
  const OperationId id = operation.result.operation;
  Settle();
  return id;
}

absl::StatusOr<OperationId> SchedulerCore::Resume() {
  PersistentState next = state_;
  next.pause.reset();
  LOCKSTEP_RETURN_IF_ERROR(BumpEpoch(std::move(next)));
  for (auto& [id, operation] : operations_) {
    if (!operation.drains) continue;
    operation.drains = false;
    operation.result.status = absl::AbortedError("resumed before everything had finished");
  }
  const OperationId id = Begin({}).result.operation;
  for (const auto& [worker_id, worker] : registry_.living()) changed_.insert(worker.name);
  Settle();
  return id;
}

OperationId SchedulerCore::FlushCache(std::optional<std::string> cache_namespace) {
  const OperationId id =
      Begin({.flush_cache = true, .flush_namespace = std::move(cache_namespace)}).result.operation;
  Settle();
  return id;
}

SchedulerCore::Operation& SchedulerCore::Begin(const ControlCommand& command) {
  const OperationId id(++operation_count_);
  Operation operation{.command = command, .epoch = state_.admission_epoch};
  if (command.abort_all || !command.abort_requests.empty()) operation.advance = advance_.All();
  for (const auto& [worker_id, worker] : registry_.living()) {
    operation.round.Add(worker.name, clock_->Now() + options_.control_timeout);
    SendTo(worker, id, operation.epoch, command);
  }
  operation.result.operation = id;
  return operations_.emplace(id, std::move(operation)).first->second;
}

void SchedulerCore::SendTo(const WorkerRegistry::Worker& worker, OperationId operation,
                           base::Epoch epoch, ControlCommand command) {
  // A command that is sent again after a Resume must not stop the sequences once more.
  command.hold = holding();
  decisions_.calls.push_back({.operation = operation,
                              .worker = worker.name,
                              .address = worker.address,
                              .scheduler_epoch = state_.scheduler_epoch,
                              .admission_epoch = epoch,
                              .command = std::move(command)});
}

void SchedulerCore::OnControlReply(OperationId operation, const WorkerName& worker,
                                   const absl::StatusOr<ControlReply>& reply) {
  const auto it = operations_.find(operation);
  if (it == operations_.end()) return;
  it->second.round.OnReply(worker, reply);
  Settle();
}

void SchedulerCore::TickOperations() {
  for (auto& [id, operation] : operations_) {
    for (const WorkerName& late : operation.round.TakeLate(clock_->Now())) {
      if (registry_.Remove(late, LeaseEnd::kRevoked)) OnLeaseEnded(late, LeaseEnd::kRevoked);
    }
    for (const WorkerName& failed : operation.round.TakeFailed()) {
      const WorkerRegistry::Worker* worker = registry_.Find(failed);
      if (worker != nullptr) SendTo(*worker, id, operation.epoch, operation.command);
    }
  }
}

void SchedulerCore::JoinOperations(const WorkerRegistry::Worker& worker, bool may_have_missed) {
  const absl::Time deadline = clock_->Now() + options_.control_timeout;
  for (auto& [id, operation] : operations_) {
    if (!operation.reported) continue;
    operation.round.Add(worker.name, deadline);
    SendTo(worker, id, operation.epoch, operation.command);
  }
  if (!may_have_missed) return;
  Operation operation{
      .command = {.abort_all = true}, .epoch = state_.abort_epoch, .reported = false};
  operation.round.Add(worker.name, deadline);
  const OperationId id(++operation_count_);
  SendTo(worker, id, operation.epoch, operation.command);
  operations_.emplace(id, std::move(operation));
}

bool SchedulerCore::TicketsAreBack(Operation* operation) const {
  // Until no router can start with an old ticket: whoever comes after the answer must not be taken
  // for one that entered before the abort.
  std::erase_if(operation->advance, [&](const auto& id) { return !advance_.Contains(id); });
  // Until what was on its way has ended or come back here: it belongs into the answer.
  std::erase_if(operation->under_way, [&](const auto& id) { return ledger_.Find(id) == nullptr; });
  return operation->advance.empty() && operation->under_way.empty();
}

void SchedulerCore::FinishOperations() {
  if (recovering_) return;
  for (auto it = operations_.begin(); it != operations_.end();) {
    Operation& operation = it->second;
    if (!operation.round.done() || !TicketsAreBack(&operation) ||
        (operation.drains && ledger_.size() > 0)) {
      ++it;
      continue;
    }
    OperationResult& result = operation.result;
    result.aborted_sequences += operation.round.aborted_sequences();
    result.freed_blocks = operation.round.freed_blocks();
    result.epoch = state_.admission_epoch;
    result.unknown_requests = std::count_if(
        operation.aborting.begin(), operation.aborting.end(), [&](const base::RequestId& request) {
          return !operation.known.contains(request) &&
                 !operation.round.known_requests().contains(request);
        });
    for (const WorkerName& silent : operation.round.silent()) {
      result.silent_workers.push_back(silent.id);
    }
    if (operation.reported) decisions_.finished.push_back(std::move(result));
    it = operations_.erase(it);
  }
}

}  // namespace lockstep::scheduler
