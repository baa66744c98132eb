#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "services/router/sequence_types.h"

namespace lockstep::router {

// A ticket for a sequence still to come. Its plan has no length yet.
struct AdvanceTicket {
  Ticket ticket;
  int64_t tokens_max = 0;  // Prompt plus all that the sequence may generate.
};

// The tickets that the scheduler granted in advance, so that a sequence which comes alone need not
// wait for an answer. Each is used once or given back: when it has lain for half of its life, and
// when a newer epoch has made it worthless. Not thread-safe.
class AdvanceStock {
 public:
  void Add(AdvanceTicket ticket, absl::Time now);
  // The oldest ticket on `worker` that is good for `tokens`, with the plan's length still to be
  // filled in.
  std::optional<Ticket> Take(const WorkerKey& worker, int64_t tokens, absl::Time now);

  // Each returns what left the stock, to be given back.
  std::vector<base::TicketId> DropExpired(absl::Time now);
  std::vector<base::TicketId> DropOlderThan(base::Epoch epoch);
  std::vector<base::TicketId> Drop(const WorkerKey& worker);
  std::vector<base::TicketId> DropAll();

  // When the first of them has to be given back; infinite without any.
  absl::Time next_expiry() const;
  bool empty() const { return workers_.empty(); }

 private:
  struct Item {
    AdvanceTicket ticket;
    absl::Time usable_until;
  };
  template <typename Predicate>
  std::vector<base::TicketId> DropIf(const Predicate& predicate);

  // In order of arrival; no queue is empty. Few workers with few tickets each.
  std::map<WorkerKey, std::deque<Item>> workers_;
};

}  // namespace lockstep::router
