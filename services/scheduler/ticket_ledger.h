#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// Every ticket that may still run: drawn at the grant, seen when its worker reports it, gone when
// the worker reports its end or its absence, when the router gives it back, when the worker is
// lost, or when it expired before the worker got it. Ids are unique over restarts, since their high
// bits are the scheduler's epoch of office. Not thread-safe.
class TicketLedger {
 public:
  struct Options {
    uint64_t scheduler_epoch = 0;  // < 2^24.
    absl::Duration expiry;         // Of a ticket that its worker has not reported.
  };
  struct Entry {
    WorkerName worker;
    base::RequestId request;  // Empty where another scheduler granted it, and until it is known.
    absl::Time granted;
    bool seen = false;         // Reported by its worker.
    uint64_t report_seen = 0;  // Number of the worker's report that showed it last.
  };

  explicit TicketLedger(Options options);

  // Draws an id for a grant.
  base::TicketId Grant(const WorkerName& worker, const base::RequestId& request, absl::Time now);
  // Says whose a ticket is that was granted in advance. False when it is not known any longer.
  bool SetRequest(base::TicketId ticket, const base::RequestId& request);
  // Takes over a ticket that the worker says it holds. False when it is known.
  bool Adopt(const WorkerName& worker, base::TicketId ticket, absl::Time now);

  // Forgets one ticket. False when it was not known.
  bool End(base::TicketId ticket);
  // Applies a worker's report, and returns the tickets that are gone by it, now forgotten.
  std::vector<base::TicketId> ApplyReport(const WorkerReport& report, absl::Time now);
  // Forgets and returns all tickets of a worker.
  std::vector<base::TicketId> EndWorker(const WorkerName& worker);

  // Granted by a scheduler that held office before this one.
  bool FromEarlierOffice(base::TicketId ticket) const;
  // Null when unknown. Valid until the next change.
  const Entry* Find(base::TicketId ticket) const;
  // Tickets of these requests that are on their way to a worker, or that it has not reported yet.
  std::vector<base::TicketId> Unseen(const absl::flat_hash_set<base::RequestId>& requests) const;
  size_t size() const { return tickets_.size(); }

 private:
  struct WorkerTickets {
    absl::flat_hash_set<base::TicketId> tickets;
    uint64_t report_count = 0;
  };

  const Options options_;
  uint64_t granted_count_ = 0;
  absl::flat_hash_map<base::TicketId, Entry> tickets_;
  absl::flat_hash_map<WorkerName, WorkerTickets> by_worker_;
};

}  // namespace lockstep::scheduler
