#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// Tickets that routers hold for sequences still to come, and the room set aside for them. A ticket
// leaves when its router says which sequence it is for, gives it back, or when it ended in any
// other way. Not thread-safe.
class AdvanceTickets {
 public:
  // The ticket is new; it stands for at most `blocks` of the worker's KV.
  void Add(base::TicketId ticket, RouterStream stream, const WorkerName& worker, int64_t blocks);
  // False when it is not one of these.
  bool Remove(base::TicketId ticket);

  int64_t count(RouterStream stream, const WorkerName& worker) const;
  int64_t blocks(const WorkerName& worker) const;
  size_t size() const { return tickets_.size(); }
  bool Contains(base::TicketId ticket) const { return tickets_.contains(ticket); }
  std::vector<base::TicketId> All() const;
  // In order of grant.
  std::vector<base::TicketId> Of(RouterStream stream) const;

 private:
  struct Entry {
    RouterStream stream;
    WorkerName worker;
    int64_t blocks = 0;
  };

  absl::flat_hash_map<base::TicketId, Entry> tickets_;
  // Without zeros.
  absl::flat_hash_map<std::pair<RouterStream, WorkerName>, int64_t> counts_;
  absl::flat_hash_map<WorkerName, int64_t> blocks_;
};

}  // namespace lockstep::scheduler
