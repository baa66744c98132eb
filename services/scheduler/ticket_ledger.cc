#include "services/scheduler/ticket_ledger.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace lockstep::scheduler {
namespace {

constexpr int kCountBits = 40;

}  // namespace

TicketLedger::TicketLedger(Options options) : options_(options) {
  LOCKSTEP_CHECK_LT(options.scheduler_epoch, uint64_t{1} << (64 - kCountBits));
}

base::TicketId TicketLedger::Grant(const WorkerName& worker, const base::RequestId& request,
                                   absl::Time now) {
  ++granted_count_;
  LOCKSTEP_CHECK_LT(granted_count_, uint64_t{1} << kCountBits);
  const base::TicketId id((options_.scheduler_epoch << kCountBits) | granted_count_);
  tickets_.try_emplace(id, Entry{.worker = worker, .request = request, .granted = now});
  by_worker_[worker].tickets.insert(id);
  return id;
}

bool TicketLedger::SetRequest(base::TicketId ticket, const base::RequestId& request) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return false;
  it->second.request = request;
  return true;
}

bool TicketLedger::Adopt(const WorkerName& worker, base::TicketId ticket, absl::Time now) {
  const Entry entry{.worker = worker, .granted = now, .seen = true};
  if (!tickets_.try_emplace(ticket, entry).second) return false;
  by_worker_[worker].tickets.insert(ticket);
  return true;
}

bool TicketLedger::End(base::TicketId ticket) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return false;
  const auto worker = by_worker_.find(it->second.worker);
  worker->second.tickets.erase(ticket);
  tickets_.erase(it);
  return true;
}

std::vector<base::TicketId> TicketLedger::ApplyReport(const WorkerReport& report, absl::Time now) {
  const auto worker = by_worker_.find(report.name);
  if (worker == by_worker_.end()) return {};
  const uint64_t number = ++worker->second.report_count;
  for (const HeldTicket& held : report.held) {
    const auto it = tickets_.find(held.ticket);
    if (it == tickets_.end() || it->second.worker != report.name) continue;
    it->second.seen = true;
    it->second.report_seen = number;
  }
  std::vector<base::TicketId> gone;
  for (const base::TicketId ticket : report.ended) {
    const auto it = tickets_.find(ticket);
    if (it != tickets_.end() && it->second.worker == report.name && End(ticket)) {
      gone.push_back(ticket);
    }
  }
  const size_t ended_count = gone.size();
  for (const base::TicketId ticket : worker->second.tickets) {
    const Entry& entry = tickets_.at(ticket);
    const bool shown = entry.seen && entry.report_seen == number;
    if (!shown && (entry.seen || entry.granted + options_.expiry <= now)) gone.push_back(ticket);
  }
  // In order of grant, so that one history gives one order of decisions.
  std::sort(gone.begin() + ended_count, gone.end());
  for (size_t i = ended_count; i < gone.size(); ++i) End(gone[i]);
  return gone;
}

std::vector<base::TicketId> TicketLedger::EndWorker(const WorkerName& worker) {
  const auto it = by_worker_.find(worker);
  if (it == by_worker_.end()) return {};
  std::vector<base::TicketId> gone(it->second.tickets.begin(), it->second.tickets.end());
  std::sort(gone.begin(), gone.end());
  for (const base::TicketId ticket : gone) tickets_.erase(ticket);
  by_worker_.erase(it);
  return gone;
}

bool TicketLedger::FromEarlierOffice(base::TicketId ticket) const {
  // The first office is 1: a bare number, such as 0 for no ticket at all, is nobody's.
  const uint64_t office = ticket.value() >> kCountBits;
  return office >= 1 && office < options_.scheduler_epoch;
}

const TicketLedger::Entry* TicketLedger::Find(base::TicketId ticket) const {
  const auto it = tickets_.find(ticket);
  return it == tickets_.end() ? nullptr : &it->second;
}

std::vector<base::TicketId> TicketLedger::Unseen(
    const absl::flat_hash_set<base::RequestId>& requests) const {
  std::vector<base::TicketId> unseen;
  for (const auto& [ticket, entry] : tickets_) {
    if (!entry.seen && requests.contains(entry.request)) unseen.push_back(ticket);
  }
  return unseen;
}

}  // namespace lockstep::scheduler
