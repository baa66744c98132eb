#include "tests/sim/scheduler_checker.h"

#include "absl/strings/str_cat.h"

namespace lockstep::scheduler::sim {

void Checker::OnAdmit(const AdmissionRequest& request, absl::Time now) {
  const int64_t rank = request.attempt > 0 ? 0 : 1;
  const std::string group_name = absl::StrCat(rank, "/", request.group);
  const uint64_t number = ++arrivals_;
  Group& group = groups_.try_emplace(group_name, Group{number, now, 0}).first->second;
  ++group.waiting;
  Waiting waiting{.group = group_name,
                  .rank = rank,
                  .group_number = group.number,
                  .group_arrived = group.arrived,
                  .candidates = {request.candidates.begin(), request.candidates.end()}};
  if (!waiting_.emplace(Key{request.stream, request.handle}, std::move(waiting)).second) {
    Problem(absl::StrCat("the simulation used handle ", request.handle, " twice"));
  }
}

void Checker::Remove(std::map<Key, Waiting>::iterator it) {
  const auto group = groups_.find(it->second.group);
  if (--group->second.waiting == 0) groups_.erase(group);
  waiting_.erase(it);
}

void Checker::OnStreamClosed(RouterStream stream) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto next = std::next(it);
    if (it->first.first == stream) Remove(it);
    it = next;
  }
}

void Checker::OnRegistered(const WorkerName& name) {
  const auto [it, added] = living_.try_emplace(name.id, name.incarnation);
  if (!added && it->second != name.incarnation) {
    Problem(absl::StrCat("two lives of worker ", name.id.value(), " overlap"));
  }
  if (dead_.contains(name)) {
    Problem(absl::StrCat("worker ", name.id.value(), " came back to life"));
  }
}

void Checker::OnLost(const WorkerName& name) {
  const auto it = living_.find(name.id);
  if (it == living_.end() || it->second != name.incarnation) {
    Problem(absl::StrCat("worker ", name.id.value(), " was lost, but did not live"));
    return;
  }
  living_.erase(it);
  dead_.insert(name);
}

void Checker::OnRestart() {
  living_.clear();
  dead_.clear();
  draining_.clear();
  waiting_.clear();
  groups_.clear();
}

void Checker::OnRecovered(absl::Time now) {
  for (auto& [name, group] : groups_) group.arrived = now;
  for (auto& [key, waiting] : waiting_) waiting.group_arrived = now;
}

void Checker::OnOutcome(const AdmitOutcome& outcome, bool granting, absl::Time now) {
  const auto it = waiting_.find({outcome.stream, outcome.handle});
  if (it == waiting_.end()) {
    Problem(absl::StrCat("handle ", outcome.handle, " of stream ", outcome.stream.value(),
                         " has a second outcome, or one that nobody asked for"));
    return;
  }
  const Waiting granted = it->second;
  Remove(it);
  if (!outcome.ticket.ok()) return;
  if (!granting) Problem("a grant while paused or within a lease of a restart");
  CheckGrant(*outcome.ticket, granted, now);
}

void Checker::OnAdvance(const AdvanceGrant& grant, bool granting) {
  if (!granting) Problem("an advance ticket while paused or within a lease of a restart");
  if (!waiting_.empty()) Problem("an advance ticket while somebody waits");
  CheckTicket(grant.ticket);
}

void Checker::CheckTicket(const Ticket& ticket) {
  if (!tickets_.insert(ticket.id).second) {
    Problem(absl::StrCat("ticket ", ticket.id.value(), " was granted twice"));
  }
  const auto living = living_.find(ticket.worker.id);
  if (living == living_.end() || living->second != ticket.worker.incarnation) {
    Problem(absl::StrCat("a grant on worker ", ticket.worker.id.value(), ", which is dead"));
  }
  if (draining_.contains(ticket.worker)) {
    Problem(absl::StrCat("a grant on worker ", ticket.worker.id.value(), ", which drains"));
  }
}

void Checker::CheckGrant(const Ticket& ticket, const Waiting& granted, absl::Time now) {
  CheckTicket(ticket);
  if (!granted.candidates.contains(ticket.worker)) Problem("a grant on no candidate");
  for (const auto& [key, other] : waiting_) {
    const bool ahead =
        std::pair(other.rank, other.group_number) < std::pair(granted.rank, granted.group_number);
    if (!ahead || !other.candidates.contains(ticket.worker)) continue;
    if (other.group_arrived + ageing_ <= now) {
      Problem(absl::StrCat("group ", other.group, " has waited for ",
                           absl::FormatDuration(now - other.group_arrived), " and was passed by ",
                           granted.group));
    }
  }
}

}  // namespace lockstep::scheduler::sim
