#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/scheduler/chunk_plan.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// Knows the plan of every ticket and judges the cuts that workers report. A plan outlives its
// ticket by `retention`, because a worker's last report about a ticket comes after the ticket's end
// and may come twice. Not thread-safe.
class PlanAudit {
 public:
  explicit PlanAudit(absl::Duration retention) : retention_(retention) {}

  // Begins to accept cuts of `ticket` from `worker`.
  void Add(base::TicketId ticket, const WorkerName& worker, CutBounds bounds);
  // The ticket runs although it was taken for ended, or was granted before the scheduler was
  // restarted; then its plan is not known and `fallback` bounds it.
  void Revive(base::TicketId ticket, const WorkerName& worker, CutBounds fallback);
  // The ticket has ended at `now`.
  void Retire(base::TicketId ticket, absl::Time now);
  // Forgets plans that retired more than the retention ago.
  void Expire(absl::Time now);

  // OK, or what is wrong with the cut: NOT_FOUND when it ran without a ticket of this worker,
  // OUT_OF_RANGE when it is misaligned. Violations are counted.
  absl::Status Check(const WorkerName& worker, const Cut& cut);

  // The ticket was granted on this worker, and not forgotten yet.
  bool Knows(base::TicketId ticket, const WorkerName& worker) const;

  // Since construction; must stay 0 in a healthy cluster.
  int64_t violation_count() const { return violation_count_; }
  int64_t cut_count() const { return cut_count_; }
  size_t size() const { return plans_.size(); }

 private:
  struct Entry {
    WorkerName worker;
    CutBounds bounds;
    std::optional<absl::Time> retired;
  };
  absl::Status CheckAgainstPlan(const WorkerName& worker, const Cut& cut) const;

  const absl::Duration retention_;
  // A tree and not a hash table: most of what is here has retired, so its size follows the rate of
  // requests, and a tree gives memory back when that falls.
  absl::btree_map<base::TicketId, Entry> plans_;
  std::deque<std::pair<absl::Time, base::TicketId>> retired_;  // Ascending by time.
  int64_t violation_count_ = 0;
  int64_t cut_count_ = 0;
};

}  // namespace lockstep::scheduler
