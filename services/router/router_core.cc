#include "services/router/router_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/deadline_margin.h"
#include "common/base/retry_advice.h"
#include "services/router/sequence_keys.h"

namespace lockstep::router {
namespace {

// While an unlisted worker still streams, how often it is looked at.
constexpr absl::Duration kUnlistedPeriod = absl::Milliseconds(100);

void AddUsage(const SequenceUsage& part, SequenceUsage* sum) {
  sum->cached_tokens += part.cached_tokens;
  sum->queue_seconds += part.queue_seconds;
  sum->prefill_seconds += part.prefill_seconds;
  sum->decode_seconds += part.decode_seconds;
  sum->preemptions += part.preemptions;
}

}  // namespace

RouterCore::RouterCore(RouterCoreOptions options, RouterCoreDeps deps)
    : options_(options), deps_(std::move(deps)), table_(options.workers) {}

void RouterCore::Open(GatewayId gateway, std::vector<OpenSequence> opens) {
  const absl::Time now = deps_.clock->Now();
  for (OpenSequence& open : opens) {
    const uint64_t handle = open.handle;
    absl::Status status = CheckOpen(open);
    if (status.ok()) status = CheckRoomFor(*open.spec);
    if (ledger_.FindByHandle(gateway, handle) != nullptr) {
      deps_.logger.Error("handle_used_twice", {{"gateway", gateway}, {"handle", handle}});
      continue;
    }
    deps_.metrics->opened.Increment();
    deps_.metrics->sequences.Add(1);
    SequenceRecord* record = ledger_.Open(gateway, std::move(open), now);
    deps_.metrics->prompt_bytes.Set(static_cast<double>(ledger_.spec_bytes()));
    if (!status.ok()) {
      EndWithError(record, std::move(status));
      continue;
    }
    record->affinity_key = AffinityKey(*record->spec, options_.affinity_tokens);
    record->prefix_hash = PrefixHash(*record->spec);
  }
  PlaceWaiting();
}

absl::Status RouterCore::CheckRoomFor(const SequenceSpec& spec) const {
  std::string full;
  if (ledger_.size() >= static_cast<size_t>(options_.sequences_max)) {
    full = absl::StrCat("sequences_max of the router is ", options_.sequences_max);
  } else if (const int64_t bytes = ledger_.BytesToAdd(spec);
             // One that is larger than all there is still runs, alone.
             ledger_.spec_bytes() > 0 && ledger_.spec_bytes() + bytes > options_.prompt_bytes_max) {
    full = absl::StrCat("prompt_bytes_max of the router is ", options_.prompt_bytes_max, ", ",
                        ledger_.spec_bytes(), " are in work and this one has ", bytes);
  }
  if (full.empty()) return absl::OkStatus();
  return base::WithRetryAdvice(absl::ResourceExhaustedError(full),
                               {.retryable = true, .delay = absl::Seconds(1)});
}

void RouterCore::Cancel(GatewayId gateway, uint64_t handle) {
  SequenceRecord* record = ledger_.FindByHandle(gateway, handle);
  if (record == nullptr) return;  // It has ended meanwhile.
  Stop(record);
  EndAborted(record);
  PlaceWaiting();
}

void RouterCore::AddCredit(GatewayId gateway, uint64_t handle, int64_t tokens) {
  SequenceRecord* record = ledger_.FindByHandle(gateway, handle);
  if (record == nullptr || tokens <= 0) return;
  record->credit_granted += tokens;
  if (record->state != SequenceState::kRunning) return;
  if (WorkerTable::Row* row = table_.Find(record->ticket->worker)) {
    BatchFor(row).credits.push_back({record->ticket->id, tokens});
  }
}

void RouterCore::GatewayLost(GatewayId gateway) {
  const Records records = ledger_.OfGateway(gateway);
  for (SequenceRecord* record : records) {
    Stop(record);
    deps_.metrics->ended[EndReason::kAbort].Increment();
    Close(record);
  }
  if (!records.empty()) {
    deps_.logger.Info("gateway_lost", {{"gateway", gateway}, {"sequences", records.size()}});
  }
  PlaceWaiting();
}

void RouterCore::SchedulerConnected() {
  scheduler_connected_ = true;
  deps_.metrics->scheduler_connected.Set(1);
  PlaceWaiting();
}

void RouterCore::SchedulerLost() {
  scheduler_connected_ = false;
  deps_.metrics->scheduler_connected.Set(0);
  // A new stream knows nothing of the old one's requests: they are asked again. What runs goes on.
  const absl::Time now = deps_.clock->Now();
  for (SequenceRecord* record : ledger_.InState(SequenceState::kAdmitting)) {
    table_.AddAdmitting(record->candidates.front(), -1);
    ledger_.SetWaiting(record, now);
  }
  actions_.admits.clear();
  actions_.withdrawn_handles.clear();
  GiveBack(stock_.DropAll());
  report_at_ = absl::InfiniteFuture();
}

void RouterCore::ApplySnapshot(const std::vector<WorkerState>& workers) {
  const absl::Time now = deps_.clock->Now();
  const bool joined = table_.ApplySnapshot(workers, now);
  deps_.metrics->workers.Set(static_cast<double>(table_.listed_count()));
  if (joined) {
    // Those that queue would otherwise not use the new worker. All of them ask again in order of
    // arrival, so none loses its place to another one.
    for (SequenceRecord* record : ledger_.InState(SequenceState::kAdmitting)) {
      if (now - record->asked_at >= options_.reconsider_after) Withdraw(record);
    }
  }
  PlaceWaiting();
}

void RouterCore::PlaceWaiting() {
  const absl::Time now = deps_.clock->Now();
  if (const std::optional<uint64_t> id = ward_.TakeTurn()) {
    ledger_.SetWaiting(ledger_.FindById(*id), now);
  }
  if (!scheduler_connected_ || ledger_.next_retry() > now || table_.Usable(now).empty()) return;
  const Records due = ledger_.DueForRetry(now);
  size_t begin = 0;
  while (begin < due.size()) {
    const SequenceRecord& first = *due[begin];
    size_t end = begin + 1;
    while (end < due.size() && end - begin < static_cast<size_t>(options_.group_unit) &&
           due[end]->affinity_key == first.affinity_key &&
           due[end]->spec->group_id == first.spec->group_id) {
      ++end;
    }
    const RouteChoice choice = deps_.policy->Rank(
        {.affinity_key = first.affinity_key, .sequence_count = static_cast<int64_t>(end - begin)},
        table_.Usable(now));
    if (end - begin == 1 && StartAhead(due[begin], choice)) begin = end;
    for (; begin < end; ++begin) Admit(due[begin], choice);
  }
}

bool RouterCore::StartAhead(SequenceRecord* record, const RouteChoice& choice) {
  const WorkerKey& worker = *choice.candidates.front();
  // Somebody who asked before must not be overtaken, and whether a sequence that has been on a
  // worker may still run is the scheduler's to say.
  WorkerTable::Row* row = table_.Find(worker);
  if (row == nullptr || row->own_admitting > 0) return false;
  if (record->attempt > 0 || record->entry_epoch != base::Epoch()) return false;
  AdmitRequest report = RequestFor(*record);
  std::optional<Ticket> ticket =
      stock_.Take(worker, report.length + report.new_tokens_max, deps_.clock->Now());
  if (!ticket.has_value()) return false;
  report.used_ticket = ticket->id;
  ticket->plan.length = report.length;
  actions_.used.push_back(std::move(report));
  deps_.metrics->routed[choice.reason].Increment();
  deps_.metrics->started_ahead.Increment();
  Run(record, row, *std::move(ticket));
  return true;
}

AdmitRequest RouterCore::RequestFor(const SequenceRecord& record) const {
  const int64_t output_count = static_cast<int64_t>(record.log.output_ids().size());
  return {
      .spec = record.spec,
      .attempt = record.attempt,
      .length = static_cast<int64_t>(record.spec->prompt_ids().size()) + output_count,
      .new_tokens_max = std::max<int64_t>(0, record.spec->max_new_tokens - output_count),
      .prefix_hash = record.prefix_hash,
      .entry_epoch = record.entry_epoch,
      .time_left = base::LeftForNextHop(record.deadline - deps_.clock->Now()),
  };
}

void RouterCore::Admit(SequenceRecord* record, const RouteChoice& choice) {
  deps_.metrics->routed[choice.reason].Increment();
  std::vector<WorkerKey> candidates;
  candidates.reserve(choice.candidates.size());
  for (const WorkerKey* worker : choice.candidates) candidates.push_back(*worker);
  table_.AddAdmitting(candidates.front(), 1);
  ledger_.SetAdmitting(record, candidates);
  record->asked_at = deps_.clock->Now();
  AdmitRequest request = RequestFor(*record);
  request.handle = record->admit_handle;
  request.candidates = std::move(candidates);
  actions_.admits.push_back(std::move(request));
}

void RouterCore::TicketGranted(uint64_t admit_handle, Ticket ticket) {
  SequenceRecord* record = ledger_.FindByAdmission(admit_handle);
  if (record == nullptr || ledger_.FindByTicket(ticket.id) != nullptr) {
    // Withdrawn or ended while the grant was on its way. A ticket that runs already is not ours to
    // give back.
    if (ledger_.FindByTicket(ticket.id) == nullptr) actions_.released_tickets.push_back(ticket.id);
    return;
  }
  const absl::Time now = deps_.clock->Now();
  table_.AddAdmitting(record->candidates.front(), -1);
  WorkerTable::Row* row = table_.Find(ticket.worker);
  if (row == nullptr) {
    actions_.released_tickets.push_back(ticket.id);
    ledger_.SetWaiting(record, now);
    return PlaceWaiting();
  }
  Run(record, row, std::move(ticket));
}

void RouterCore::TicketGrantedAhead(AdvanceTicket ticket) {
  if (table_.Find(ticket.ticket.worker) == nullptr) return GiveBack({ticket.ticket.id});
  stock_.Add(std::move(ticket), deps_.clock->Now());
}

void RouterCore::EpochSeen(base::Epoch epoch) {
  const std::vector<base::TicketId> old = stock_.DropOlderThan(epoch);
  // A pause may wait for them.
  if (!old.empty()) report_at_ = absl::InfinitePast();
  GiveBack(old);
}

void RouterCore::GiveBack(const std::vector<base::TicketId>& tickets) {
  actions_.released_tickets.insert(actions_.released_tickets.end(), tickets.begin(), tickets.end());
}

void RouterCore::Run(SequenceRecord* record, WorkerTable::Row* row, Ticket ticket) {
  const absl::Time now = deps_.clock->Now();
  if (record->attempt == 0) deps_.metrics->open_to_start_seconds.Observe(now - record->opened_at);
  // The first grant says when the sequence entered the cluster; an abort of everything ends what
  // entered before it, also when it is between two workers.
  if (record->entry_epoch == base::Epoch()) {
    record->entry_epoch = ticket.epoch;
    actions_.entries.push_back({record->gateway, record->handle, ticket.epoch});
  }
  ledger_.SetRunning(record, std::move(ticket));
  table_.AddRunning(row->worker, 1, now);
  LoggerOf(*record).Step("sequence_starts", {{"sequence", record->spec->sequence},
                                             {"worker", row->worker.id},
                                             {"attempt", record->ticket->attempt}});
  Start(record, row);
}

void RouterCore::AdmissionFailed(uint64_t admit_handle, const absl::Status& error) {
  SequenceRecord* record = ledger_.FindByAdmission(admit_handle);
  if (record == nullptr) return;
  deps_.metrics->admission_errors[error.code()].Increment();
  table_.AddAdmitting(record->candidates.front(), -1);
  ledger_.SetWaiting(record, deps_.clock->Now());
  // A full queue is an answer for a newcomer, but no reason to drop what has been started.
  const bool retry =
      absl::IsUnavailable(error) || (absl::IsResourceExhausted(error) && record->attempt > 0);
  if (absl::IsAborted(error) || absl::IsDeadlineExceeded(error)) {
    EndAborted(record);
  } else if (retry) {
    BackOff(record, base::GetRetryAdvice(error).delay);
  } else {
    EndWithError(record, error);
  }
  PlaceWaiting();
}

void RouterCore::Withdraw(SequenceRecord* record) {
  actions_.withdrawn_handles.push_back(record->admit_handle);
  table_.AddAdmitting(record->candidates.front(), -1);
  ledger_.SetWaiting(record, deps_.clock->Now());
}

void RouterCore::Stop(SequenceRecord* record) {
  if (record->state == SequenceState::kAdmitting) Withdraw(record);
  if (record->state == SequenceState::kRunning) {
    CancelAtWorker(*record);
    GiveUpTicket(record, deps_.clock->Now());
  }
}

void RouterCore::End(SequenceRecord* record, SequenceEnd end, SequenceDelta last) {
  AddUsage(record->usage, &end.usage);
  end.resumptions = record->resumptions;
  deps_.metrics->ended[end.reason].Increment();
  LoggerOf(*record).Step("sequence_ended", {{"sequence", record->spec->sequence},
                                            {"reason", EndReasonName(end.reason)},
                                            {"outputs", record->log.output_ids().size()},
                                            {"resumptions", record->resumptions}});
  last.end = std::move(end);
  Deliver(*record, std::move(last));
  Close(record);
}

void RouterCore::Close(SequenceRecord* record) {
  deps_.metrics->sequences.Add(-1);
  ward_.Leave(record->id);
  ledger_.Close(record);
  deps_.metrics->prompt_bytes.Set(static_cast<double>(ledger_.spec_bytes()));
}

void RouterCore::EndWithError(SequenceRecord* record, absl::Status error) {
  LoggerOf(*record).Warning("sequence_failed",
                            {{"sequence", record->spec->sequence}, {"error", error}});
  End(record, {.reason = EndReason::kError, .error = std::move(error)});
}

void RouterCore::EndAborted(SequenceRecord* record) { End(record, {.reason = EndReason::kAbort}); }

void RouterCore::Deliver(const SequenceRecord& record, SequenceDelta delta) {
  deps_.metrics->deltas.Increment();
  delta.handle = record.handle;
  actions_.deltas.push_back({record.gateway, std::move(delta)});
}

void RouterCore::Tick() {
  const absl::Time now = deps_.clock->Now();
  for (SequenceRecord* record : ledger_.PastDeadline(now)) {
    LoggerOf(*record).Info("sequence_deadline", {{"sequence", record->spec->sequence}});
    Stop(record);
    EndAborted(record);
  }
  for (const WorkerKey& worker : table_.SilentUnlisted(now)) LoseWorker(worker, /*blame=*/false);
  for (const WorkerKey& worker : table_.IdleSince(now - options_.stream_idle_max)) {
    CloseStream(table_.Find(worker));
  }
  table_.Sweep();
  GiveBack(stock_.DropExpired(now));
  PlaceWaiting();
}

absl::Time RouterCore::NextWakeup() {
  const absl::Time now = deps_.clock->Now();
  absl::Time next = std::min({ledger_.next_deadline(), stock_.next_expiry(), report_at_});
  if (scheduler_connected_ && ledger_.next_retry() != absl::InfiniteFuture()) {
    const bool usable = !table_.Usable(now).empty();
    next = std::min(next, usable ? ledger_.next_retry() : table_.next_suspect_end());
  }
  if (table_.has_unlisted()) next = std::min(next, now + kUnlistedPeriod);
  if (!streams_.empty()) next = std::min(next, now + options_.stream_idle_max / 2);
  return next;
}

RouterActions RouterCore::TakeActions() {
  RouterActions taken = std::exchange(actions_, {});
  batch_index_.clear();
  if (scheduler_connected_ && !MayReportLater(taken)) {
    report_at_ = absl::InfiniteFuture();
    return taken;
  }
  actions_.used = std::move(taken.used);
  actions_.released_tickets = std::move(taken.released_tickets);
  return taken;
}

bool RouterCore::MayReportLater(const RouterActions& actions) {
  const size_t reports = std::max(actions.used.size(), actions.released_tickets.size());
  if (reports == 0) return false;
  if (stock_.empty() || reports >= options_.reports_max || !actions.admits.empty() ||
      !actions.withdrawn_handles.empty() || ledger_.admitting_count() > 0) {
    return false;
  }
  const absl::Time now = deps_.clock->Now();
  report_at_ = std::min(report_at_, now + options_.report_delay);
  return report_at_ > now;
}

log::Logger RouterCore::LoggerOf(const SequenceRecord& record) const {
  return deps_.logger.ForRequest(record.spec->trace_id, record.spec->request.value());
}

}  // namespace lockstep::router
