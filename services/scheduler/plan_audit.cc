#include "services/scheduler/plan_audit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep::scheduler {

void PlanAudit::Add(base::TicketId ticket, const WorkerName& worker, CutBounds bounds) {
  if (const auto old = plans_.find(ticket); old != plans_.end()) Erase(old);
  const auto rules = rules_
                         .try_emplace({.worker = worker,
                                       .split_kv_size = bounds.plan.split_kv_size,
                                       .kv_block_tokens = bounds.kv_block_tokens},
                                      0)
                         .first;
  ++rules->second;
  plans_.try_emplace(
      ticket, Entry{.rules = rules, .length = bounds.plan.length, .length_max = bounds.length_max});
}

void PlanAudit::Erase(Plans::iterator it) {
  const auto rules = it->second.rules;
  plans_.erase(it);
  if (--rules->second == 0) rules_.erase(rules);
}

void PlanAudit::Revive(base::TicketId ticket, const WorkerName& worker, CutBounds fallback) {
  if (Knows(ticket, worker)) {
    plans_.at(ticket).retired_ns = kLive;
  } else {
    Add(ticket, worker, fallback);
  }
}

void PlanAudit::Retire(base::TicketId ticket, absl::Time now) {
  const auto it = plans_.find(ticket);
  if (it == plans_.end() || it->second.retired_ns != kLive) return;
  it->second.retired_ns = absl::ToUnixNanos(now);
  retired_.push_back({it->second.retired_ns, ticket});
}

void PlanAudit::Expire(absl::Time now) {
  const int64_t until_ns = absl::ToUnixNanos(now - retention_);
  while (!retired_.empty() && retired_.front().ns <= until_ns) {
    // A ticket that was revived meanwhile is live, or retired later: then it stays.
    const auto it = plans_.find(retired_.front().ticket);
    if (it != plans_.end() && it->second.retired_ns == retired_.front().ns) Erase(it);
    retired_.pop_front();
  }
}

absl::Status PlanAudit::Check(const WorkerName& worker, const Cut& cut) {
  ++cut_count_;
  absl::Status status = CheckAgainstPlan(worker, cut);
  if (!status.ok()) ++violation_count_;
  return status;
}

bool PlanAudit::Knows(base::TicketId ticket, const WorkerName& worker) const {
  const auto it = plans_.find(ticket);
  return it != plans_.end() && it->second.rules->first.worker == worker;
}

absl::Status PlanAudit::CheckAgainstPlan(const WorkerName& worker, const Cut& cut) const {
  if (!Knows(cut.ticket, worker)) {
    return absl::NotFoundError(absl::StrCat("cut [", cut.begin, ", ", cut.end,
                                            ") ran without a ticket of this worker (ticket ",
                                            cut.ticket.value(), ")"));
  }
  const Entry& entry = plans_.at(cut.ticket);
  const WorkerRules& rules = entry.rules->first;
  return CheckCut({.plan = {.split_kv_size = rules.split_kv_size, .length = entry.length},
                   .kv_block_tokens = rules.kv_block_tokens,
                   .length_max = entry.length_max},
                  cut);
}

}  // namespace lockstep::scheduler
