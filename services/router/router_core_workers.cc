// The half of RouterCore that faces workers: starting attempts, taking their results, and going on
// elsewhere when an attempt is over before its sequence is.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/deadline_margin.h"
#include "common/base/retry_advice.h"
#include "services/router/router_core.h"

namespace lockstep::router {

void RouterCore::Start(SequenceRecord* record, WorkerTable::Row* row) {
  WorkerStart start;
  start.ticket = *record->ticket;
  start.spec = record->spec;
  if (record->log.output_ids().size() != record->spec->generated_ids.size()) {
    start.generated_ids = std::make_shared<const std::vector<uint32_t>>(record->log.output_ids());
  }
  start.deliver_output_from = record->log.delivered_outputs();
  start.deliver_prompt_from = record->log.deliver_prompt_from();
  start.credit_tokens = std::max<int64_t>(0, record->credit_left());
  start.entry_epoch = record->entry_epoch;
  start.time_left = base::LeftForNextHop(record->deadline - deps_.clock->Now());
  BatchFor(row).starts.push_back(std::move(start));
}

WorkerBatch& RouterCore::BatchFor(WorkerTable::Row* row) {
  if (row->stream == StreamId(0)) {
    row->stream = StreamId(++last_stream_);
    streams_[row->stream] = row->worker;
  }
  const auto [it, added] = batch_index_.try_emplace(row->stream, actions_.workers.size());
  if (added) {
    actions_.workers.push_back({.stream = row->stream,
                                .worker = row->worker,
                                .address = row->address,
                                .lease = row->lease});
  }
  return actions_.workers[it->second];
}

void RouterCore::CancelAtWorker(const SequenceRecord& record) {
  WorkerTable::Row* row = table_.Find(record.ticket->worker);
  if (row != nullptr && row->stream != StreamId(0)) {
    BatchFor(row).cancels.push_back(record.ticket->id);
  }
}

void RouterCore::GiveUpTicket(SequenceRecord* record, absl::Time retry_at) {
  actions_.released_tickets.push_back(record->ticket->id);
  table_.AddRunning(record->ticket->worker, -1, deps_.clock->Now());
  ledger_.SetWaiting(record, retry_at);
}

void RouterCore::FrameCame(StreamId stream, WorkerFrame frame) {
  const auto it = streams_.find(stream);
  if (it == streams_.end()) {
    // The stream was given up; what it still brings belongs to attempts that are over.
    deps_.metrics->stale_deltas.Increment(static_cast<double>(frame.deltas.size()));
    return;
  }
  const WorkerKey worker = it->second;
  WorkerTable::Row* row = table_.Find(worker);
  table_.FrameCame(row, deps_.clock->Now());
  const auto running = [&](base::TicketId ticket) -> SequenceRecord* {
    SequenceRecord* record = ledger_.FindByTicket(ticket);
    return record != nullptr && record->ticket->worker == worker ? record : nullptr;
  };
  for (SequenceDelta& delta : frame.deltas) {
    const base::TicketId ticket(delta.handle);
    if (SequenceRecord* record = running(ticket)) {
      AcceptDelta(record, std::move(delta));
      continue;
    }
    deps_.metrics->stale_deltas.Increment();
    // The worker must not go on with an attempt that nobody waits for.
    if (!delta.end.has_value()) BatchFor(row).cancels.push_back(ticket);
  }
  for (const WorkerRefusal& refusal : frame.refusals) {
    if (SequenceRecord* record = running(refusal.ticket)) Refused(record, refusal.error);
  }
  for (const base::TicketId ticket : frame.hand_offs) {
    if (SequenceRecord* record = running(ticket)) {
      table_.MarkDraining(worker);
      Failover(record, FailoverCause::kHandOff, absl::UnavailableError("handed off"));
    }
  }
  PlaceWaiting();
}

void RouterCore::AcceptDelta(SequenceRecord* record, SequenceDelta delta) {
  const absl::StatusOr<DeliveryLog::Accepted> accepted = record->log.Accept(&delta);
  if (!accepted.ok()) {
    LoggerOf(*record).Error("bad_delta", {{"sequence", record->spec->sequence},
                                          {"worker", record->ticket->worker.id},
                                          {"attempt", record->ticket->attempt},
                                          {"error", accepted.status()}});
    CancelAtWorker(*record);
    if (absl::IsDataLoss(accepted.status())) {
      // Two attempts disagree and nobody can tell which one is right: the promise is broken.
      deps_.metrics->bit_mismatches.Increment();
      GiveUpTicket(record, deps_.clock->Now());
      return EndWithError(record,
                          absl::InternalError(absl::StrCat("results differ between attempts: ",
                                                           accepted.status().message())));
    }
    return Failover(record, FailoverCause::kBadFrame,
                    absl::InternalError(accepted.status().message()));
  }
  deps_.metrics->duplicate_positions.Increment(static_cast<double>(accepted->duplicate_positions));
  deps_.metrics->tokens.Increment(static_cast<double>(accepted->new_tokens));
  const bool progress = accepted->new_tokens + accepted->new_prompt_positions > 0;
  if (progress) {
    record->retries_left = record->retry_budget;
    record->back_off = absl::ZeroDuration();
    record->workers_ended = 0;
    record->streams_lost.clear();
    ward_.Leave(record->id);
  }
  std::optional<SequenceEnd> end = std::exchange(delta.end, std::nullopt);
  const bool moves = end.has_value() && end->reason == EndReason::kError &&
                     base::GetRetryAdvice(end->error).retryable;
  if (!end.has_value() || moves) {
    if (progress) Deliver(*record, std::move(delta));
    if (!moves) return;
    // The worker says that it cannot go on, not that the sequence cannot.
    record->streams_lost.push_back(record->ticket->worker);
    return Failover(record, FailoverCause::kWorkerError, end->error);
  }
  const bool finished = end->reason == EndReason::kStop || end->reason == EndReason::kLength;
  if (finished && record->log.deliver_prompt_from() != 0) {
    // Nothing follows that could show this gap, so the end has to.
    if (progress) Deliver(*record, std::move(delta));
    return Failover(record, FailoverCause::kBadFrame,
                    absl::InternalError(absl::StrCat("ended before prompt position ",
                                                     record->log.deliver_prompt_from())));
  }
  end->worker_id = record->ticket->worker.id.value();
  GiveUpTicket(record, deps_.clock->Now());
  End(record, *std::move(end), std::move(delta));
}

void RouterCore::Refused(SequenceRecord* record, const absl::Status& error) {
  deps_.metrics->refusals[error.code()].Increment();
  GiveUpTicket(record, deps_.clock->Now());
  switch (error.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:
      return Retry(record, error);
    case absl::StatusCode::kResourceExhausted:
      return BackOff(record, base::GetRetryAdvice(error).delay);
    case absl::StatusCode::kAborted:
      return EndAborted(record);
    default:
      return EndWithError(record, error);
  }
}

void RouterCore::StreamClosed(StreamId stream, const absl::Status& status) {
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;  // Closed by this side.
  const WorkerKey worker = it->second;
  streams_.erase(it);
  deps_.logger.Warning("worker_stream_closed", {{"worker", worker.id}, {"status", status}});
  table_.StreamBroke(worker, deps_.clock->Now());
  // FAILED_PRECONDITION is the worker's own word that this life of it is over; it has not died of
  // anything that ran on it.
  const bool suspicious = !absl::IsFailedPrecondition(status);
  for (SequenceRecord* record : ledger_.RunningOn(worker)) {
    if (suspicious) record->streams_lost.push_back(worker);
    Failover(record, FailoverCause::kStreamBroken,
             absl::UnavailableError(absl::StrCat("stream to worker ", worker.id.value(),
                                                 " closed: ", status.message())));
  }
  table_.Sweep();
  PlaceWaiting();
}

void RouterCore::WorkerLost(const WorkerKey& worker) {
  const WorkerTable::Row* row = table_.Find(worker);
  LoseWorker(worker, /*blame=*/row == nullptr || !row->draining);
  PlaceWaiting();
}

void RouterCore::LoseWorker(const WorkerKey& worker, bool blame) {
  deps_.logger.Warning("worker_lost", {{"worker", worker.id}, {"blame", blame}});
  if (WorkerTable::Row* row = table_.Find(worker)) CloseStream(row);
  table_.Lose(worker);
  GiveBack(stock_.Drop(worker));
  deps_.metrics->workers.Set(static_cast<double>(table_.listed_count()));
  Records suspects;
  for (SequenceRecord* record : ledger_.All()) {
    const bool running =
        record->state == SequenceState::kRunning && record->ticket->worker == worker;
    // Its stream may have broken before the scheduler gave the worker up.
    const bool left = std::erase(record->streams_lost, worker) > 0;
    // What a worker repeats for a held sequence has ended nobody before.
    const bool suspicious = blame && (running || left) && !record->held();
    if (suspicious && ++record->workers_ended >= options_.poison_limit) {
      suspects.push_back(record);
    }
    if (running) {
      Failover(record, FailoverCause::kLeaseLost,
               absl::UnavailableError(absl::StrCat("worker ", worker.id.value(), " was lost")));
    } else if (record->state == SequenceState::kAdmitting &&
               std::none_of(record->candidates.begin(), record->candidates.end(),
                            [&](const WorkerKey& key) { return table_.Find(key) != nullptr; })) {
      Withdraw(record);
    }
  }
  JudgeSuspects(suspects);
}

void RouterCore::JudgeSuspects(const Records& suspects) {
  for (SequenceRecord* record : suspects) {
    Stop(record);
    if (suspects.size() > 1) {
      ward_.Enter(record->id);
      ledger_.SetWaiting(record, absl::InfiniteFuture());
      continue;
    }
    deps_.metrics->quarantined.Increment();
    EndWithError(record, absl::InternalError(
                             absl::StrCat("quarantined: ", record->workers_ended,
                                          " workers ended while they ran it, at output position ",
                                          record->log.delivered_outputs())));
  }
}

void RouterCore::CloseStream(WorkerTable::Row* row) {
  if (row->stream == StreamId(0)) return;
  actions_.closed_streams.push_back(row->stream);
  streams_.erase(row->stream);
  row->stream = StreamId(0);
}

void RouterCore::Failover(SequenceRecord* record, FailoverCause cause, const absl::Status& why) {
  LoggerOf(*record).Info("sequence_moves", {{"sequence", record->spec->sequence},
                                            {"worker", record->ticket->worker.id},
                                            {"attempt", record->ticket->attempt},
                                            {"outputs", record->log.output_ids().size()},
                                            {"why", why}});
  deps_.metrics->resumptions[cause].Increment();
  ++record->resumptions;
  GiveUpTicket(record, deps_.clock->Now());
  // A hand-off is the worker's wish and says nothing against another try; suspects are judged after
  // all of a dead worker's sequences have been seen.
  const bool judged =
      cause == FailoverCause::kLeaseLost && record->workers_ended >= options_.poison_limit;
  if (cause != FailoverCause::kHandOff && !judged) Retry(record, why);
}

void RouterCore::Retry(SequenceRecord* record, const absl::Status& why) {
  if (record->retries_left == 0) {
    return EndWithError(
        record, base::WithRetryAdvice(
                    absl::Status(why.code(), absl::StrCat("retry budget spent: ", why.message())),
                    base::GetRetryAdvice(why)));
  }
  --record->retries_left;
  if (record->back_off == absl::ZeroDuration()) {
    record->back_off = options_.back_off_initial;
    return ledger_.SetWaiting(record, deps_.clock->Now());
  }
  BackOff(record, absl::ZeroDuration());
}

void RouterCore::BackOff(SequenceRecord* record, absl::Duration delay_min) {
  const absl::Duration pause = std::max(record->back_off, options_.back_off_initial);
  record->back_off = std::min(2 * pause, options_.back_off_max);
  ledger_.SetWaiting(record, deps_.clock->Now() + std::max(pause, delay_min));
}

}  // namespace lockstep::router
