#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>

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
  static constexpr int64_t kLive = std::numeric_limits<int64_t>::max();
  // What plans of one worker share.
  struct WorkerRules {
    WorkerName worker;
    int64_t split_kv_size = 0;
    int64_t kv_block_tokens = 0;
    friend auto operator<=>(const WorkerRules&, const WorkerRules&) = default;
  };
  // Most plans have retired, so their number is the rate of requests times the retention: an entry
  // is as small as it can be.
  struct Entry {
    std::map<WorkerRules, int64_t>::iterator rules;
    int64_t length = 0;
    int64_t length_max = 0;
    int64_t retired_ns = kLive;
  };
  struct Retired {
    int64_t ns = 0;
    base::TicketId ticket;
  };
  using Plans = absl::btree_map<base::TicketId, Entry>;

  void Erase(Plans::iterator it);
  absl::Status CheckAgainstPlan(const WorkerName& worker, const Cut& cut) const;

  const absl::Duration retention_;
  std::map<WorkerRules, int64_t> rules_;  // -> entries that share it.
  // A tree and not a hash table: it gives memory back when the rate falls.
  Plans plans_;
  std::deque<Retired> retired_;  // Ascending by time.
  int64_t violation_count_ = 0;
  int64_t cut_count_ = 0;
};

}  // namespace lockstep::scheduler
