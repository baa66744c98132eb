// The simulated scheduler: snapshots, and tickets for those who ask and for those who will.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/router_sim.h"

namespace lockstep::router {
namespace {

constexpr size_t kSlotsAWorker = 24;

}  // namespace

void RouterSim::Snapshot() {
  if (!scheduler_up_) return;
  std::vector<WorkerState> states;
  for (const Worker& worker : workers_) {
    const auto running = std::count_if(reserved_.begin(), reserved_.end(), [&](const auto& entry) {
      return entry.second == worker.key;
    });
    states.push_back({.worker = worker.key,
                      .address = "x",
                      .running_sequences = running,
                      .draining = worker.draining});
  }
  // The watch is another stream than the admissions: the two are not ordered with each other.
  At(clock_.Now() + Latency(), [this, states] { Apply([&] { core_.ApplySnapshot(states); }); });
}

void RouterSim::GrantQueued() {
  std::vector<AdmitRequest> left;
  for (AdmitRequest& request : queue_) {
    const Worker* chosen = nullptr;
    for (const WorkerKey& key : request.candidates) {
      const auto it = std::find_if(workers_.begin(), workers_.end(),
                                   [&](const Worker& worker) { return worker.key == key; });
      const auto used = std::count_if(reserved_.begin(), reserved_.end(),
                                      [&](const auto& entry) { return entry.second == key; });
      if (it == workers_.end() || it->draining || used >= static_cast<int>(kSlotsAWorker)) continue;
      chosen = &*it;
      break;
    }
    const bool hopeless = std::none_of(
        request.candidates.begin(), request.candidates.end(), [&](const WorkerKey& key) {
          return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
            return worker.key == key && !worker.draining;
          });
        });
    if (chosen == nullptr && !hopeless) {
      left.push_back(std::move(request));
      continue;
    }
    to_router_ = std::max(to_router_, clock_.Now() + Latency());
    const uint64_t handle = request.handle;
    const uint64_t stream = scheduler_stream_;
    if (chosen == nullptr) {
      At(to_router_, [this, handle, stream] {
        if (stream != scheduler_stream_) return;
        Apply([&] { core_.AdmissionFailed(handle, absl::UnavailableError("no candidate")); });
      });
      continue;
    }
    const Ticket ticket = {.id = base::TicketId(++last_ticket_),
                           .worker = chosen->key,
                           .attempt = request.attempt + 1,
                           .plan = {.split_kv_size = 4, .length = request.length}};
    reserved_[ticket.id] = ticket.worker;
    GrantAhead(*chosen);
    At(to_router_, [this, handle, ticket, stream] {
      if (stream != scheduler_stream_) {
        reserved_.erase(ticket.id);  // It expires; nobody has got it.
        return;
      }
      received_tickets_[ticket.id] = 0;
      Apply([&] { core_.TicketGranted(handle, ticket); });
    });
  }
  queue_ = std::move(left);
}

// A few tickets for sequences still to come, as long as the worker has room.
void RouterSim::GrantAhead(const Worker& worker) {
  const auto used = std::count_if(reserved_.begin(), reserved_.end(),
                                  [&](const auto& entry) { return entry.second == worker.key; });
  if (used > static_cast<int>(kSlotsAWorker) / 2) return;
  for (int i = 0; i < 3; ++i) {
    const AdvanceTicket ticket = {.ticket = {.id = base::TicketId(++last_ticket_),
                                             .worker = worker.key,
                                             .attempt = 1,
                                             .plan = {.split_kv_size = 4},
                                             .expires = absl::Seconds(5)},
                                  .tokens_max = 9 + options_.new_tokens_max / 2};
    granted_ahead_[ticket.ticket.id] = worker.key;
    At(to_router_, [this, ticket, stream = scheduler_stream_] {
      if (stream != scheduler_stream_) return;
      received_tickets_[ticket.ticket.id] = 0;
      Apply([&] { core_.TicketGrantedAhead(ticket); });
    });
  }
}

}  // namespace lockstep::router
