#include "services/scheduler/scheduler_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::scheduler {
namespace {

absl::Status CheckRegistration(const WorkerRegistration& registration) {
  const WorkerCapacity& capacity = registration.capacity;
  if (registration.name.id.value().empty() || registration.address.empty()) {
    return absl::InvalidArgumentError("worker_id and address must not be empty");
  }
  if (capacity.kv_blocks <= 0 || capacity.kv_block_tokens <= 0 || capacity.sequences_max <= 0 ||
      capacity.context_tokens_max <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("capacity must be positive: kv_blocks ", capacity.kv_blocks,
                     ", kv_block_tokens ", capacity.kv_block_tokens, ", sequences_max ",
                     capacity.sequences_max, ", context_tokens_max ", capacity.context_tokens_max));
  }
  const int64_t split = registration.split_kv_size;
  if (split <= 0 || split % capacity.kv_block_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrCat("split_kv_size ", split,
                                                   " is not a positive multiple of ",
                                                   capacity.kv_block_tokens, " (kv_block_tokens)"));
  }
  return absl::OkStatus();
}

// The first worker brings the contract, but not its mode: that is the operator's to choose.
absl::Status CheckMode(const Contract& contract, bool expects_normal) {
  const char* const other = expects_normal ? "MODE_DETERMINISTIC" : "MODE_NORMAL";
  for (const ContractField& field : contract.fields) {
    if (field.name != "mode" || field.value != other) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the worker's mode is ", other, ", and the scheduler's setting mode is \"",
                     expects_normal ? "normal" : "deterministic", "\""));
  }
  return absl::OkStatus();
}

CutBounds BoundsWithoutPlan(const WorkerRegistry::Worker& worker) {
  return {.plan = {.split_kv_size = worker.split_kv_size},
          .kv_block_tokens = worker.capacity.kv_block_tokens};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SchedulerCore>> SchedulerCore::Create(Options options,
                                                                     const base::Clock* clock,
                                                                     StateStore* store) {
  const std::optional<PersistentState> before = store->Load();
  PersistentState state = before.value_or(PersistentState{});
  ++state.scheduler_epoch;
  LOCKSTEP_RETURN_IF_ERROR(store->Save(state));
  const absl::Time now = clock->Now();
  const absl::Time recovering_until = before.has_value() ? now + options.lease : now;
  return std::unique_ptr<SchedulerCore>(
      new SchedulerCore(options, clock, store, state, recovering_until));
}

SchedulerCore::SchedulerCore(Options options, const base::Clock* clock, StateStore* store,
                             const PersistentState& state, absl::Time recovering_until)
    : options_(options),
      clock_(clock),
      store_(store),
      state_(state),
      recovering_(recovering_until > clock->Now()),
      recovering_until_(recovering_until),
      last_tick_(clock->Now()),
      registry_(options.lease),
      gate_(state.contract),
      accounting_(options.accounting),
      queue_(options.queue),
      ledger_({.scheduler_epoch = state.scheduler_epoch, .expiry = options.ticket_expiry}),
      audit_(options.lease + options.ticket_expiry),
      aborted_(options.aborted) {}

absl::Status SchedulerCore::SaveState(PersistentState next) {
  LOCKSTEP_RETURN_IF_ERROR(store_->Save(next));
  decisions_.epoch_changed |= next.admission_epoch != state_.admission_epoch;
  state_ = std::move(next);
  return absl::OkStatus();
}

absl::Status SchedulerCore::BumpEpoch(PersistentState next) {
  next.admission_epoch = base::Epoch(state_.admission_epoch.value() + 1);
  LOCKSTEP_RETURN_IF_ERROR(SaveState(std::move(next)));
  aborted_.EpochBegins();
  return absl::OkStatus();
}

absl::StatusOr<SchedulerCore::RegisterAnswer> SchedulerCore::Register(
    const WorkerRegistration& registration) {
  const absl::Time now = clock_->Now();
  const auto admit = [&]() -> absl::StatusOr<FingerprintGate::Decision> {
    LOCKSTEP_RETURN_IF_ERROR(CheckRegistration(registration));
    LOCKSTEP_RETURN_IF_ERROR(CheckMode(registration.contract, options_.normal_mode));
    LOCKSTEP_RETURN_IF_ERROR(registry_.CheckAdd(registration));
    // Only the former life of the same worker may be in the way of a new contract. Within a lease
    // of a restart, workers of the old contract may still be on their way here.
    const WorkerRegistry::Worker* former = registry_.FindLiving(registration.name.id);
    const size_t others = registry_.living().size() - (former != nullptr ? 1 : 0);
    return gate_.Decide(registration.contract, others == 0 && !recovering_);
  };
  const absl::StatusOr<FingerprintGate::Decision> decision = admit();
  if (!decision.ok()) {
    ++counters_.registrations_refused;
    return decision.status();
  }
  if (registry_.Find(registration.name) != nullptr) {
    return RegisterAnswer{state_.scheduler_epoch, state_.admission_epoch};
  }
  LOCKSTEP_RETURN_IF_ERROR(SetContract(registration.contract, *decision));
  if (const auto* former = registry_.FindLiving(registration.name.id)) {
    const WorkerName name = former->name;
    registry_.Remove(name, LeaseEnd::kReplaced);
    OnLeaseEnded(name, LeaseEnd::kReplaced);
  }
  registry_.Add(registration, now);
  accounting_.AddWorker(registration.name, registration.capacity);
  const WorkerRegistry::Worker& worker = *registry_.Find(registration.name);
  AdoptHeld(worker, registration.held, /*believe_all=*/true);
  // Only where nobody can have told it anything before, it has nothing to hear: a worker without
  // sequences may still hold by the word of an earlier scheduler.
  JoinOperations(worker, !registration.held.empty() || state_.scheduler_epoch > 1 ||
                             registry_.HasLived(registration.name.id));
  ++counters_.registered;
  decisions_.workers_changed = true;
  changed_.insert(registration.name);
  UpdateLargest();
  Settle();
  return RegisterAnswer{state_.scheduler_epoch, state_.admission_epoch};
}

absl::Status SchedulerCore::SetContract(const Contract& contract,
                                        FingerprintGate::Decision decision) {
  if (decision == FingerprintGate::Decision::kSame) return absl::OkStatus();
  PersistentState next = state_;
  next.contract = contract;
  if (decision == FingerprintGate::Decision::kFirst) {
    LOCKSTEP_RETURN_IF_ERROR(SaveState(std::move(next)));
    gate_.Set(contract);
    return absl::OkStatus();
  }
  // What began under the old contract must not go on under the new one with other bits.
  next.abort_epoch = base::Epoch(state_.admission_epoch.value() + 1);
  LOCKSTEP_RETURN_IF_ERROR(BumpEpoch(std::move(next)));
  gate_.Set(contract);
  RefuseAll(queue_.TakeIf([&](const AdmissionRequest& request) {
    return request.entry_epoch < state_.abort_epoch;
  }),
            absl::AbortedError("the cluster has another contract since the request came"));
  return absl::OkStatus();
}

void SchedulerCore::AdoptHeld(const WorkerRegistry::Worker& worker,
                              const std::vector<HeldTicket>& held, bool believe_all) {
  const absl::Time now = clock_->Now();
  for (const HeldTicket& one : held) {
    if (ledger_.Find(one.ticket) != nullptr) continue;
    const bool believed = believe_all || ledger_.FromEarlierOffice(one.ticket) ||
                          audit_.Knows(one.ticket, worker.name);
    if (!believed) continue;
    ledger_.Adopt(worker.name, one.ticket, now);
    accounting_.Adopt(worker.name, one.ticket, std::max<int64_t>(0, one.kv_blocks));
    audit_.Revive(one.ticket, worker.name, BoundsWithoutPlan(worker));
  }
}

void SchedulerCore::AdoptReported(const WorkerReport& report) {
  const WorkerRegistry::Worker& worker = *registry_.Find(report.name);
  AdoptHeld(worker, report.held, /*believe_all=*/false);
  // Granted before a restart, and begun and ended since the last report.
  for (const Cut& cut : report.cuts) {
    if (!ledger_.FromEarlierOffice(cut.ticket) || audit_.Knows(cut.ticket, report.name)) continue;
    audit_.Add(cut.ticket, report.name, BoundsWithoutPlan(worker));
    audit_.Retire(cut.ticket, clock_->Now());
  }
}

absl::StatusOr<base::Epoch> SchedulerCore::Heartbeat(const WorkerReport& report) {
  const absl::Time now = clock_->Now();
  LOCKSTEP_RETURN_IF_ERROR(
      registry_.Renew(report.name, {.steps = report.steps, .idle = report.idle}, now));
  AdoptReported(report);
  if (absl::Status status = AuditReport(report); !status.ok()) {
    registry_.Remove(report.name, LeaseEnd::kRevoked);
    OnLeaseEnded(report.name, LeaseEnd::kRevoked);
    Settle();
    return status;
  }
  EndTickets(ledger_.ApplyReport(report, now), report.name);
  accounting_.ApplyTruth(report.name, report.kv_blocks_free, report.held);
  changed_.insert(report.name);
  Settle();
  return state_.admission_epoch;
}

absl::Status SchedulerCore::AuditReport(const WorkerReport& report) {
  absl::Status worst;
  for (const Cut& cut : report.cuts) {
    absl::Status status = audit_.Check(report.name, cut);
    if (status.ok()) continue;
    decisions_.violations.push_back(
        absl::StrCat("worker ", report.name.id.value(), ": ", status.message()));
    worst.Update(absl::FailedPreconditionError(
        absl::StrCat("lease revoked for a violated chunk plan: ", status.message())));
  }
  return worst;
}

void SchedulerCore::EndTickets(const std::vector<base::TicketId>& tickets,
                               const WorkerName& worker) {
  const absl::Time now = clock_->Now();
  for (const base::TicketId ticket : tickets) {
    accounting_.Release(worker, ticket);
    audit_.Retire(ticket, now);
    advance_.Remove(ticket);
  }
}

absl::StatusOr<bool> SchedulerCore::Drain(const WorkerName& name, bool force) {
  LOCKSTEP_RETURN_IF_ERROR(registry_.CheckLiving(name));
  const bool others = registry_.HasOther(name);
  if (!others && !force) return false;
  registry_.SetDraining(name);
  decisions_.workers_changed = true;
  RefuseAll(queue_.RemoveCandidate(name), absl::UnavailableError("all candidates drain"));
  Settle();
  return others;
}

absl::StatusOr<bool> SchedulerCore::Leave(const WorkerName& name, LeaseEnd why) {
  if (why != LeaseEnd::kLeft && registry_.Explain(name, why)) {
    ++counters_.leases_ended[static_cast<size_t>(why)];
    decisions_.lost.push_back({.name = name, .why = why});
    return registry_.HasOther(name);
  }
  LOCKSTEP_RETURN_IF_ERROR(registry_.CheckLiving(name));
  const bool others = registry_.HasOther(name);
  registry_.Remove(name, why);
  OnLeaseEnded(name, why);
  Settle();
  return others;
}

void SchedulerCore::OnLeaseEnded(const WorkerName& name, LeaseEnd why) {
  EndTickets(ledger_.EndWorker(name), name);
  accounting_.RemoveWorker(name);
  changed_.erase(name);
  UpdateLargest();
  ++counters_.leases_ended[static_cast<size_t>(why)];
  decisions_.lost.push_back({.name = name, .why = why});
  decisions_.workers_changed = true;
  for (auto& [id, operation] : operations_) operation.round.OnLost(name);
  RefuseAll(queue_.RemoveCandidate(name),
            absl::UnavailableError("no candidate lives any longer; choose again"));
}

void SchedulerCore::UpdateLargest() {
  largest_ = Largest{};
  for (const auto& [id, worker] : registry_.living()) {
    largest_.kv_blocks = std::max(largest_.kv_blocks, worker.capacity.kv_blocks);
    largest_.kv_block_tokens = worker.capacity.kv_block_tokens;
    largest_.context_tokens_max =
        std::max(largest_.context_tokens_max, worker.capacity.context_tokens_max);
  }
}

void SchedulerCore::Tick() {
  const absl::Time now = clock_->Now();
  if (now - last_tick_ > options_.lease / 2) registry_.ExtendAll(now);
  last_tick_ = now;
  for (const WorkerName& name : registry_.TakeExpired(now)) {
    OnLeaseEnded(name, LeaseEnd::kExpired);
  }
  RefuseAll(queue_.TakeExpired(now), absl::DeadlineExceededError("waited too long for a worker"));
  EndOrphans();
  TickOperations();
  audit_.Expire(now);
  aborted_.Expire(now);
  if (recovering_ && now >= recovering_until_) EndRecovery();
  Settle();
}

Decisions SchedulerCore::TakeDecisions() { return std::exchange(decisions_, Decisions{}); }

std::vector<WorkerView> SchedulerCore::Workers() const {
  std::vector<WorkerView> views;
  views.reserve(registry_.living().size());
  for (const auto& [id, worker] : registry_.living()) {
    views.push_back(
        {.name = worker.name,
         .address = worker.address,
         .metrics_address = worker.metrics_address,
         .running_sequences = static_cast<int64_t>(accounting_.ticket_count(worker.name)),
         .kv_blocks_free = accounting_.blocks_free(worker.name),
         .kv_blocks = worker.capacity.kv_blocks,
         .draining = worker.draining,
         .lease = options_.lease});
  }
  return views;
}

CoreState SchedulerCore::state() const {
  return {.pause = state_.pause,
          .epoch = state_.admission_epoch,
          .scheduler_epoch = state_.scheduler_epoch,
          .running_sequences = static_cast<int64_t>(ledger_.size() - advance_.size()),
          .queued_sequences = static_cast<int64_t>(queue_.size()),
          .recovering = recovering_};
}

CoreCounters SchedulerCore::counters() const {
  CoreCounters counters = counters_;
  counters.cuts = audit_.cut_count();
  counters.plan_violations = audit_.violation_count();
  return counters;
}

}  // namespace lockstep::scheduler
