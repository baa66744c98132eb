#include "services/scheduler/advance_tickets.h"

#include <algorithm>

namespace lockstep::scheduler {
namespace {

template <typename Map, typename Key>
int64_t At(const Map& map, const Key& key) {
  const auto it = map.find(key);
  return it == map.end() ? 0 : it->second;
}

template <typename Map, typename Key>
void AddTo(Map& map, const Key& key, int64_t amount) {
  const auto it = map.try_emplace(key, 0).first;
  it->second += amount;
  if (it->second == 0) map.erase(it);
}

}  // namespace

void AdvanceTickets::Add(base::TicketId ticket, RouterStream stream, const WorkerName& worker,
                         int64_t blocks) {
  tickets_.try_emplace(ticket, Entry{.stream = stream, .worker = worker, .blocks = blocks});
  AddTo(counts_, std::pair(stream, worker), 1);
  AddTo(blocks_, worker, blocks);
}

bool AdvanceTickets::Remove(base::TicketId ticket) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return false;
  const Entry& entry = it->second;
  AddTo(counts_, std::pair(entry.stream, entry.worker), -1);
  AddTo(blocks_, entry.worker, -entry.blocks);
  tickets_.erase(it);
  return true;
}

std::vector<base::TicketId> AdvanceTickets::All() const {
  std::vector<base::TicketId> all;
  all.reserve(tickets_.size());
  for (const auto& [ticket, entry] : tickets_) all.push_back(ticket);
  return all;
}

std::vector<base::TicketId> AdvanceTickets::Of(RouterStream stream) const {
  std::vector<base::TicketId> tickets;
  for (const auto& [ticket, entry] : tickets_) {
    if (entry.stream == stream) tickets.push_back(ticket);
  }
  std::sort(tickets.begin(), tickets.end());
  return tickets;
}

int64_t AdvanceTickets::count(RouterStream stream, const WorkerName& worker) const {
  return At(counts_, std::pair(stream, worker));
}

int64_t AdvanceTickets::blocks(const WorkerName& worker) const { return At(blocks_, worker); }

}  // namespace lockstep::scheduler
