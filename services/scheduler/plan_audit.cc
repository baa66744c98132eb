#include "services/scheduler/plan_audit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep::scheduler {

void PlanAudit::Add(base::TicketId ticket, const WorkerName& worker, CutBounds bounds) {
  plans_.insert_or_assign(ticket, Entry{.worker = worker, .bounds = bounds});
}

void PlanAudit::Revive(base::TicketId ticket, const WorkerName& worker, CutBounds fallback) {
  if (Knows(ticket, worker)) {
    plans_.at(ticket).retired.reset();
  } else {
    Add(ticket, worker, fallback);
  }
}

void PlanAudit::Retire(base::TicketId ticket, absl::Time now) {
  const auto it = plans_.find(ticket);
  if (it == plans_.end() || it->second.retired.has_value()) return;
  it->second.retired = now;
  retired_.emplace_back(now, ticket);
}

void PlanAudit::Expire(absl::Time now) {
  while (!retired_.empty() && retired_.front().first + retention_ <= now) {
    // A ticket that was revived meanwhile is live, or retired later: then it stays.
    const auto it = plans_.find(retired_.front().second);
    if (it != plans_.end() && it->second.retired == retired_.front().first) plans_.erase(it);
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
  return it != plans_.end() && it->second.worker == worker;
}

absl::Status PlanAudit::CheckAgainstPlan(const WorkerName& worker, const Cut& cut) const {
  if (!Knows(cut.ticket, worker)) {
    return absl::NotFoundError(absl::StrCat("cut [", cut.begin, ", ", cut.end,
                                            ") ran without a ticket of this worker (ticket ",
                                            cut.ticket.value(), ")"));
  }
  return CheckCut(plans_.at(cut.ticket).bounds, cut);
}

}  // namespace lockstep::scheduler
