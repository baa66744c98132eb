#include "services/router/advance_stock.h"

#include <algorithm>
#include <utility>

namespace lockstep::router {

void AdvanceStock::Add(AdvanceTicket ticket, absl::Time now) {
  const absl::Time usable_until = now + ticket.ticket.expires / 2;
  std::deque<Item>& items = workers_[ticket.ticket.worker];
  items.push_back({std::move(ticket), usable_until});
}

std::optional<Ticket> AdvanceStock::Take(const WorkerKey& worker, int64_t tokens, absl::Time now) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return std::nullopt;
  std::deque<Item>& items = it->second;
  const auto fit = std::find_if(items.begin(), items.end(), [&](const Item& item) {
    return item.ticket.tokens_max >= tokens && now < item.usable_until;
  });
  if (fit == items.end()) return std::nullopt;
  Ticket ticket = std::move(fit->ticket.ticket);
  items.erase(fit);
  if (items.empty()) workers_.erase(it);
  return ticket;
}

template <typename Predicate>
std::vector<base::TicketId> AdvanceStock::DropIf(const Predicate& predicate) {
  std::vector<base::TicketId> dropped;
  for (auto& [worker, items] : workers_) {
    std::erase_if(items, [&](const Item& item) {
      if (!predicate(item)) return false;
      dropped.push_back(item.ticket.ticket.id);
      return true;
    });
  }
  std::erase_if(workers_, [](const auto& entry) { return entry.second.empty(); });
  return dropped;
}

std::vector<base::TicketId> AdvanceStock::DropExpired(absl::Time now) {
  return DropIf([&](const Item& item) { return item.usable_until <= now; });
}

std::vector<base::TicketId> AdvanceStock::DropOlderThan(base::Epoch epoch) {
  return DropIf([&](const Item& item) { return item.ticket.ticket.epoch < epoch; });
}

std::vector<base::TicketId> AdvanceStock::Drop(const WorkerKey& worker) {
  return DropIf([&](const Item& item) { return item.ticket.ticket.worker == worker; });
}

std::vector<base::TicketId> AdvanceStock::DropAll() {
  return DropIf([](const Item&) { return true; });
}

absl::Time AdvanceStock::next_expiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [worker, items] : workers_) {
    next = std::min(next, items.front().usable_until);
  }
  return next;
}

}  // namespace lockstep::router
