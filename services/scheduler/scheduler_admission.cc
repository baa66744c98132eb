#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/retry_advice.h"
#include "common/base/status_macros.h"
#include "services/scheduler/scheduler_core.h"

// How admission requests are decided, granted and refused.
namespace lockstep::scheduler {
namespace {

// Routers keep a ticket for half of its life from when it came to them.
constexpr absl::Duration kWayToRouterMax = absl::Milliseconds(500);

// No context is longer; sums of two such numbers do not overflow.
constexpr int64_t kTokensMax = int64_t{1} << 40;

absl::Status CheckNumbers(const Demand& demand) {
  if (demand.length < 1 || demand.length > kTokensMax || demand.prompt_tokens < 0 ||
      demand.prompt_tokens > demand.length || demand.new_tokens_max < 0 ||
      demand.new_tokens_max > kTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("length ", demand.length, ", prompt_tokens ", demand.prompt_tokens,
                     ", new_tokens_max ", demand.new_tokens_max, " do not make a sequence"));
  }
  return absl::OkStatus();
}

}  // namespace

void SchedulerCore::Admit(std::vector<AdmissionRequest> requests) {
  const size_t before = decisions_.outcomes.size();
  for (AdmissionRequest& request : requests) Decide(std::move(request));
  for (size_t i = before; i < decisions_.outcomes.size(); ++i) {
    const AdmitOutcome& outcome = decisions_.outcomes[i];
    if (outcome.ticket.ok()) GrantAhead(outcome.stream, outcome.ticket->worker);
  }
  FinishOperations();
}

void SchedulerCore::Use(const std::vector<AdmissionRequest>& requests) {
  for (const AdmissionRequest& request : requests) {
    // A report that makes no sense leaves the ticket as it was.
    if (!CheckNumbers(request.demand).ok() || !advance_.Remove(request.used_ticket)) continue;
    ledger_.SetRequest(request.used_ticket, request.request);
    aborted_.Granted(request.request);
    AwaitIfAborting(request);
    const WorkerName worker = ledger_.Find(request.used_ticket)->worker;
    Account(request.used_ticket, *registry_.Find(worker), request);
    ++counters_.used_advance;
    decisions_.used.push_back(request);
    GrantAhead(request.stream, worker);
  }
  Settle();
}

void SchedulerCore::GrantAhead(RouterStream stream, const WorkerName& name) {
  const WorkerRegistry::Worker* worker = registry_.Find(name);
  // Whoever waits comes first. And each abort by id makes those that are out worthless, lest a
  // sequence slips in whose id nobody looks at: many aborts in a row should cost that once.
  if (!granting() || queue_.size() > 0 || aborted_.Recent(clock_->Now()) || worker->draining) {
    return;
  }
  const int64_t missing = options_.advance_tickets - advance_.count(stream, name);
  if (missing <= 0 || 2 * missing < options_.advance_tickets) return;
  // All of them together stand for no more than half of what is free.
  const int64_t free = accounting_.blocks_free(name) - advance_.blocks(name);
  const int64_t blocks = free / (2 * options_.advance_tickets);
  const WorkerCapacity& capacity = worker->capacity;
  const int64_t tokens_max =
      std::min(blocks * capacity.kv_block_tokens, capacity.context_tokens_max);
  if (tokens_max <= 0) return;
  for (int64_t i = 0; i < missing; ++i) {
    const base::TicketId id = ledger_.Grant(name, base::RequestId(), clock_->Now());
    advance_.Add(id, stream, name, blocks);
    const Ticket ticket = MakeTicket(id, *worker);
    audit_.Add(id, name,
               {.plan = ticket.plan,
                .kv_block_tokens = capacity.kv_block_tokens,
                .length_max = tokens_max});
    decisions_.advance.push_back({.stream = stream, .ticket = ticket, .tokens_max = tokens_max});
  }
}

Ticket SchedulerCore::MakeTicket(base::TicketId id, const WorkerRegistry::Worker& worker) const {
  return {.id = id,
          .worker = worker.name,
          .attempt = 1,
          .epoch = state_.admission_epoch,
          .plan = {.split_kv_size = worker.split_kv_size},
          .expires_after = options_.ticket_expiry};
}

void SchedulerCore::Account(base::TicketId id, const WorkerRegistry::Worker& worker,
                            const AdmissionRequest& request) {
  const Demand& demand = request.demand;
  accounting_.Reserve(worker.name, id, demand);
  audit_.Add(id, worker.name,
             {.plan = {.split_kv_size = worker.split_kv_size, .length = demand.length},
              .kv_block_tokens = worker.capacity.kv_block_tokens,
              .length_max = demand.length + demand.new_tokens_max});
  ++counters_.granted;
}

void SchedulerCore::Decide(AdmissionRequest request) {
  const absl::Time now = clock_->Now();
  if (request.entry_epoch == base::Epoch()) request.entry_epoch = state_.admission_epoch;
  absl::Status status = CheckWanted(request);
  // While it recovers the scheduler does not know yet which candidates live.
  if (status.ok() && !recovering_) status = CheckPossible(request);
  if (status.ok() && granting()) {
    for (const WorkerName& worker : request.candidates) {
      if (queue_.MayPass(worker, request.attempt, now) &&
          TryGrant(request, worker, absl::ZeroDuration())) {
        return;
      }
    }
  }
  if (status.ok()) {
    status = queue_.Push(std::move(request), now);
  }
  if (!status.ok()) Refuse(request, std::move(status), absl::ZeroDuration());
}

absl::Status SchedulerCore::CheckWanted(const AdmissionRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckNumbers(request.demand));
  if (request.entry_epoch < state_.abort_epoch) {
    return absl::AbortedError(
        absl::StrCat("everything older than epoch ", state_.abort_epoch.value(),
                     " was aborted; the request entered at ", request.entry_epoch.value()));
  }
  if (CountIfAborting(request.request) || aborted_.Ends(request.request, request.entry_epoch)) {
    return absl::AbortedError(absl::StrCat("request ", request.request.value(), " was aborted"));
  }
  if (request.deadline <= clock_->Now()) return absl::DeadlineExceededError("no time left to wait");
  return absl::OkStatus();
}

absl::Status SchedulerCore::CheckPossible(AdmissionRequest& request) const {
  const Demand& demand = request.demand;
  const int64_t tokens = demand.length + demand.new_tokens_max;
  if (!registry_.living().empty()) {
    if (tokens > largest_.context_tokens_max) {
      return absl::InvalidArgumentError(absl::StrCat("needs ", tokens, " tokens of context; the ",
                                                     "model has ", largest_.context_tokens_max));
    }
    const int64_t blocks = BlocksWhole(demand, largest_.kv_block_tokens);
    if (blocks > largest_.kv_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("needs ", blocks, " KV blocks; the largest ",
                                                     "worker has ", largest_.kv_blocks));
    }
  }
  const auto useless = [&](const WorkerName& name) {
    const WorkerRegistry::Worker* worker = registry_.Find(name);
    return worker == nullptr || worker->draining || tokens > worker->capacity.context_tokens_max ||
           BlocksWhole(demand, worker->capacity.kv_block_tokens) > worker->capacity.kv_blocks;
  };
  std::vector<WorkerName>& candidates = request.candidates;
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), useless), candidates.end());
  if (!candidates.empty()) return absl::OkStatus();
  return absl::UnavailableError("no candidate lives and is large enough; choose again");
}

bool SchedulerCore::TryGrant(const AdmissionRequest& request, const WorkerName& worker,
                             absl::Duration waited) {
  if (!accounting_.Fits(worker, request.demand)) return false;
  const WorkerRegistry::Worker& living = *registry_.Find(worker);
  const base::TicketId id = ledger_.Grant(worker, request.request, clock_->Now());
  aborted_.Granted(request.request);
  Account(id, living, request);
  Ticket ticket = MakeTicket(id, living);
  ticket.sequence = request.sequence;
  ticket.attempt = request.attempt + 1;
  ticket.plan.length = request.demand.length;
  decisions_.outcomes.push_back({.stream = request.stream,
                                 .handle = request.handle,
                                 .sequence = request.sequence,
                                 .request = request.request,
                                 .trace_id = request.trace_id,
                                 .ticket = std::move(ticket),
                                 .waited = waited});
  return true;
}

void SchedulerCore::Refuse(const AdmissionRequest& request, absl::Status status,
                           absl::Duration waited) {
  ++counters_.refused[static_cast<size_t>(status.code())];
  decisions_.outcomes.push_back({.stream = request.stream,
                                 .handle = request.handle,
                                 .sequence = request.sequence,
                                 .request = request.request,
                                 .trace_id = request.trace_id,
                                 .ticket = std::move(status),
                                 .waited = waited});
}

void SchedulerCore::RefuseAll(const std::vector<AdmissionQueue::Waiting>& waiting,
                              const absl::Status& status) {
  const absl::Time now = clock_->Now();
  for (const AdmissionQueue::Waiting& one : waiting) {
    Refuse(one.request, status, now - one.arrived);
    // One that was at the head of a line may have kept others from passing.
    changed_.insert(one.request.candidates.begin(), one.request.candidates.end());
  }
}

void SchedulerCore::Withdraw(RouterStream stream, const std::vector<uint64_t>& handles) {
  for (const uint64_t handle : handles) {
    if (const auto waiting = queue_.Withdraw(stream, handle)) {
      changed_.insert(waiting->request.candidates.begin(), waiting->request.candidates.end());
    }
  }
  ServeQueue();
}

void SchedulerCore::Release(const std::vector<base::TicketId>& tickets) {
  for (const base::TicketId ticket : tickets) {
    const TicketLedger::Entry* entry = ledger_.Find(ticket);
    if (entry == nullptr) continue;
    const WorkerName worker = entry->worker;
    ledger_.End(ticket);
    EndTickets({ticket}, worker);
    changed_.insert(worker);
  }
  ServeQueue();
}

void SchedulerCore::CloseStream(RouterStream stream) {
  const std::vector<base::TicketId> stock = advance_.Of(stream);
  orphans_.insert(orphans_.end(), stock.begin(), stock.end());
  for (const AdmissionQueue::Waiting& waiting :
       queue_.TakeIf([&](const AdmissionRequest& request) { return request.stream == stream; })) {
    changed_.insert(waiting.request.candidates.begin(), waiting.request.candidates.end());
  }
  ServeQueue();
}

void SchedulerCore::EndOrphans() {
  const absl::Time now = clock_->Now();
  std::vector<base::TicketId> unused;
  std::erase_if(orphans_, [&](base::TicketId ticket) {
    const TicketLedger::Entry* entry = ledger_.Find(ticket);
    // What its worker has shown runs, though nobody said for whom, and ends by the worker's word.
    if (!advance_.Contains(ticket) || entry == nullptr || entry->seen) return true;
    if (now < entry->granted + options_.ticket_expiry / 2 + kWayToRouterMax) return false;
    unused.push_back(ticket);
    return true;
  });
  if (!unused.empty()) Release(unused);
}

void SchedulerCore::ServeQueue() {
  if (!granting()) return;
  const absl::Time now = clock_->Now();
  for (const WorkerName& name : std::exchange(changed_, {})) {
    const WorkerRegistry::Worker* worker = registry_.Find(name);
    if (worker == nullptr || worker->draining) continue;
    queue_.Offer(name, now, [&](const AdmissionQueue::Waiting& waiting) {
      return TryGrant(waiting.request, name, now - waiting.arrived);
    });
  }
}

void SchedulerCore::EndRecovery() {
  recovering_ = false;
  // What came meanwhile was queued unseen; now it is judged like a new arrival, in the same order.
  for (AdmissionQueue::Waiting& waiting :
       queue_.TakeIf([](const AdmissionRequest&) { return true; })) {
    Decide(std::move(waiting.request));
  }
}

}  // namespace lockstep::scheduler
