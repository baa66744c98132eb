#include "services/scheduler/worker_registry.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lockstep::scheduler {
namespace {

constexpr size_t kEndedKeptMax = 256;

}  // namespace

const char* LeaseEndName(LeaseEnd end) {
  switch (end) {
    case LeaseEnd::kExpired:
      return "expired";
    case LeaseEnd::kReplaced:
      return "replaced";
    case LeaseEnd::kRevoked:
      return "revoked";
    case LeaseEnd::kLeft:
      return "left";
    case LeaseEnd::kFailed:
      return "failed";
    case LeaseEnd::kWrongBits:
      return "wrong_bits";
  }
  return "unknown";
}

absl::Status WorkerRegistry::CheckAdd(const WorkerRegistration& registration) const {
  const WorkerName& name = registration.name;
  if (const Ended* ended = FindEnded(name)) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", name.incarnation.value(), " of worker ", name.id.value(),
                     " has ended (", LeaseEndName(ended->why), "); draw a new one"));
  }
  const Worker* living = FindLiving(name.id);
  if (living != nullptr && living->address != registration.address) {
    return absl::AlreadyExistsError(absl::StrCat("worker ", name.id.value(), " lives at ",
                                                 living->address, "; refused at ",
                                                 registration.address));
  }
  return absl::OkStatus();
}

void WorkerRegistry::Add(const WorkerRegistration& registration, absl::Time now) {
  const bool added =
      living_
          .try_emplace(registration.name.id, Worker{.name = registration.name,
                                                    .address = registration.address,
                                                    .metrics_address = registration.metrics_address,
                                                    .capacity = registration.capacity,
                                                    .split_kv_size = registration.split_kv_size,
                                                    .lease_until = now + lease_})
          .second;
  LOCKSTEP_CHECK(added) << registration.name.id << " lives already";
}

absl::Status WorkerRegistry::Renew(const WorkerName& name, Progress progress, absl::Time now) {
  LOCKSTEP_RETURN_IF_ERROR(CheckLiving(name));
  Worker& worker = living_.at(name.id);
  if (progress.idle || progress.steps > worker.steps) {
    worker.lease_until = now + lease_;
    worker.steps = progress.steps;
  }
  return absl::OkStatus();
}

absl::Status WorkerRegistry::CheckLiving(const WorkerName& name) const {
  if (Find(name) != nullptr) return absl::OkStatus();
  if (const Ended* ended = FindEnded(name)) {
    return absl::FailedPreconditionError(absl::StrCat("the lease of worker ", name.id.value(),
                                                      " incarnation ", name.incarnation.value(),
                                                      " has ended: ", LeaseEndName(ended->why)));
  }
  return absl::NotFoundError(absl::StrCat("worker ", name.id.value(), " incarnation ",
                                          name.incarnation.value(), " is not registered"));
}

void WorkerRegistry::ExtendAll(absl::Time now) {
  for (auto& [id, worker] : living_) worker.lease_until = now + lease_;
}

bool WorkerRegistry::Remove(const WorkerName& name, LeaseEnd why) {
  const auto it = living_.find(name.id);
  if (it == living_.end() || it->second.name != name) return false;
  living_.erase(it);
  Remember(name, why);
  return true;
}

bool WorkerRegistry::Explain(const WorkerName& name, LeaseEnd why) {
  const auto it = ended_.find(name.id);
  if (it == ended_.end()) return false;
  for (Ended& ended : it->second) {
    if (ended.incarnation == name.incarnation && ended.why == LeaseEnd::kExpired) {
      ended.why = why;
      return true;
    }
  }
  return false;
}

std::vector<WorkerName> WorkerRegistry::TakeExpired(absl::Time now) {
  std::vector<WorkerName> expired;
  for (const auto& [id, worker] : living_) {
    if (worker.lease_until <= now) expired.push_back(worker.name);
  }
  for (const WorkerName& name : expired) Remove(name, LeaseEnd::kExpired);
  return expired;
}

void WorkerRegistry::SetDraining(const WorkerName& name) {
  const auto it = living_.find(name.id);
  if (it != living_.end() && it->second.name == name) it->second.draining = true;
}

const WorkerRegistry::Worker* WorkerRegistry::Find(const WorkerName& name) const {
  const Worker* worker = FindLiving(name.id);
  return worker != nullptr && worker->name == name ? worker : nullptr;
}

const WorkerRegistry::Worker* WorkerRegistry::FindLiving(const base::WorkerId& id) const {
  const auto it = living_.find(id);
  return it == living_.end() ? nullptr : &it->second;
}

bool WorkerRegistry::HasOther(const WorkerName& except) const {
  for (const auto& [id, worker] : living_) {
    if (worker.name != except && !worker.draining) return true;
  }
  return false;
}

const WorkerRegistry::Ended* WorkerRegistry::FindEnded(const WorkerName& name) const {
  const auto it = ended_.find(name.id);
  if (it == ended_.end()) return nullptr;
  for (const Ended& ended : it->second) {
    if (ended.incarnation == name.incarnation) return &ended;
  }
  return nullptr;
}

void WorkerRegistry::Remember(const WorkerName& name, LeaseEnd why) {
  std::deque<Ended>& ended = ended_[name.id];
  ended.push_front({.incarnation = name.incarnation, .why = why});
  if (ended.size() > kEndedKeptMax) ended.pop_back();
}

}  // namespace lockstep::scheduler
