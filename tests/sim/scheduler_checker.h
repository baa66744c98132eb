#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "services/scheduler/decisions.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler::sim {

// Watches everything that goes into the scheduler and comes out of it, and keeps its own account of
// what must be true: one outcome for each request, one life for each worker id, unique tickets, no
// grant where none is allowed, and no aged group passed by a younger one.
class Checker {
 public:
  explicit Checker(absl::Duration ageing) : ageing_(ageing) {}

  // In.
  void OnAdmit(const AdmissionRequest& request, absl::Time now);
  void OnStreamClosed(RouterStream stream);
  void OnRegistered(const WorkerName& name);
  void OnDraining(const WorkerName& name) { draining_.insert(name); }
  // A new scheduler process: it knows no worker and no request.
  void OnRestart();
  // The restarted scheduler has begun to judge what had come.
  void OnRecovered(absl::Time now);

  // Out.
  void OnAdvance(const AdvanceGrant& grant, bool granting);
  void OnOutcome(const AdmitOutcome& outcome, bool granting, absl::Time now);
  void OnLost(const WorkerName& name);

  void Problem(const std::string& what) { problems_.push_back(what); }
  const std::vector<std::string>& problems() const { return problems_; }
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    std::string group;
    int64_t rank = 0;
    uint64_t group_number = 0;
    absl::Time group_arrived;
    std::set<WorkerName> candidates;
  };
  struct Group {
    uint64_t number = 0;
    absl::Time arrived;
    int64_t waiting = 0;
  };
  using Key = std::pair<RouterStream, uint64_t>;

  void CheckTicket(const Ticket& ticket);
  void CheckGrant(const Ticket& ticket, const Waiting& granted, absl::Time now);
  void Remove(std::map<Key, Waiting>::iterator it);

  const absl::Duration ageing_;
  uint64_t arrivals_ = 0;
  std::map<Key, Waiting> waiting_;
  std::map<std::string, Group> groups_;
  std::map<base::WorkerId, base::Incarnation> living_;
  std::set<WorkerName> dead_;
  std::set<WorkerName> draining_;
  std::set<base::TicketId> tickets_;
  std::vector<std::string> problems_;
};

}  // namespace lockstep::scheduler::sim
