#include "services/router/sequence_ledger.h"

#include <algorithm>

#include "common/base/deadline_margin.h"

namespace lockstep::router {
namespace {

int64_t BytesOf(const std::vector<uint32_t>& ids) {
  return static_cast<int64_t>(ids.size() * sizeof(uint32_t));
}

// Without the prompt, which others may share.
int64_t OwnBytesOf(const SequenceSpec& spec) {
  return BytesOf(spec.generated_ids) + static_cast<int64_t>(spec.body.size());
}

}  // namespace

SequenceRecord::SequenceRecord(uint64_t id_in, GatewayId gateway_in, OpenSequence open,
                               absl::Time now)
    : id(id_in),
      gateway(gateway_in),
      handle(open.handle),
      spec(std::move(open.spec)),
      opened_at(now),
      deadline(now + base::LeftForNextHop(open.time_left)),
      retry_budget(open.retry_budget),
      log(*spec),
      credit_granted(open.credit_tokens),
      entry_epoch(spec->entry_epoch),
      retries_left(open.retry_budget) {}

SequenceRecord* SequenceLedger::Open(GatewayId gateway, OpenSequence open, absl::Time now) {
  const auto [slot, added] = by_handle_.try_emplace({gateway, open.handle}, nullptr);
  if (!added) return nullptr;
  const uint64_t id = ++last_id_;
  spec_bytes_ += BytesToAdd(*open.spec);
  ++prompt_uses_[open.spec->prompt.get()];
  auto record = std::make_unique<SequenceRecord>(id, gateway, std::move(open), now);
  slot->second = record.get();
  waiting_.insert({record->retry_at, id});
  deadlines_.insert({record->deadline, id});
  return (records_[id] = std::move(record)).get();
}

void SequenceLedger::Close(SequenceRecord* record) {
  LeaveState(record);
  deadlines_.erase({record->deadline, record->id});
  by_handle_.erase({record->gateway, record->handle});
  const auto uses = prompt_uses_.find(record->spec->prompt.get());
  if (--uses->second == 0) prompt_uses_.erase(uses);
  spec_bytes_ -= BytesToAdd(*record->spec);
  records_.erase(record->id);
}

int64_t SequenceLedger::BytesToAdd(const SequenceSpec& spec) const {
  const bool shared = prompt_uses_.contains(spec.prompt.get());
  return OwnBytesOf(spec) + (shared ? 0 : BytesOf(*spec.prompt));
}

SequenceRecord* SequenceLedger::FindByHandle(GatewayId gateway, uint64_t handle) {
  const auto it = by_handle_.find({gateway, handle});
  return it == by_handle_.end() ? nullptr : it->second;
}

SequenceRecord* SequenceLedger::FindByAdmission(uint64_t admit_handle) {
  const auto it = by_admission_.find(admit_handle);
  return it == by_admission_.end() ? nullptr : it->second;
}

SequenceRecord* SequenceLedger::FindByTicket(base::TicketId ticket) {
  const auto it = by_ticket_.find(ticket);
  return it == by_ticket_.end() ? nullptr : it->second;
}

SequenceRecord* SequenceLedger::FindById(uint64_t id) {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : it->second.get();
}

void SequenceLedger::LeaveState(SequenceRecord* record) {
  switch (record->state) {
    case SequenceState::kWaiting:
      waiting_.erase({record->retry_at, record->id});
      return;
    case SequenceState::kAdmitting:
      by_admission_.erase(record->admit_handle);
      record->candidates.clear();
      return;
    case SequenceState::kRunning:
      by_ticket_.erase(record->ticket->id);
      record->ticket.reset();
      return;
  }
}

void SequenceLedger::SetWaiting(SequenceRecord* record, absl::Time retry_at) {
  LeaveState(record);
  record->state = SequenceState::kWaiting;
  record->retry_at = retry_at;
  waiting_.insert({retry_at, record->id});
}

void SequenceLedger::SetAdmitting(SequenceRecord* record, std::vector<WorkerKey> candidates) {
  LeaveState(record);
  record->state = SequenceState::kAdmitting;
  record->candidates = std::move(candidates);
  record->admit_handle = ++last_admit_handle_;
  by_admission_[record->admit_handle] = record;
}

void SequenceLedger::SetRunning(SequenceRecord* record, Ticket ticket) {
  LeaveState(record);
  record->state = SequenceState::kRunning;
  record->attempt = ticket.attempt;
  by_ticket_[ticket.id] = record;
  record->ticket = std::move(ticket);
}

std::vector<SequenceRecord*> SequenceLedger::All() {
  std::vector<SequenceRecord*> all;
  all.reserve(records_.size());
  for (const auto& [id, record] : records_) all.push_back(record.get());
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  return all;
}

std::vector<SequenceRecord*> SequenceLedger::InState(SequenceState state) {
  std::vector<SequenceRecord*> chosen = All();
  std::erase_if(chosen, [&](const auto* record) { return record->state != state; });
  return chosen;
}

std::vector<SequenceRecord*> SequenceLedger::RunningOn(const WorkerKey& worker) {
  std::vector<SequenceRecord*> chosen = InState(SequenceState::kRunning);
  std::erase_if(chosen, [&](const auto* record) { return record->ticket->worker != worker; });
  return chosen;
}

std::vector<SequenceRecord*> SequenceLedger::OfGateway(GatewayId gateway) {
  std::vector<SequenceRecord*> chosen = All();
  std::erase_if(chosen, [&](const auto* record) { return record->gateway != gateway; });
  return chosen;
}

std::vector<SequenceRecord*> SequenceLedger::DueForRetry(absl::Time now) {
  std::vector<SequenceRecord*> due;
  for (auto it = waiting_.begin(); it != waiting_.end() && it->first <= now; ++it) {
    due.push_back(FindById(it->second));
  }
  std::sort(due.begin(), due.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  return due;
}

std::vector<SequenceRecord*> SequenceLedger::PastDeadline(absl::Time now) {
  std::vector<SequenceRecord*> past;
  for (auto it = deadlines_.begin(); it != deadlines_.end() && it->first <= now; ++it) {
    past.push_back(FindById(it->second));
  }
  return past;
}

absl::Time SequenceLedger::next_retry() const {
  return waiting_.empty() ? absl::InfiniteFuture() : waiting_.begin()->first;
}

absl::Time SequenceLedger::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

}  // namespace lockstep::router
