#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// kFailed and kWrongBits: its worker left and said why.
enum class LeaseEnd { kExpired, kReplaced, kRevoked, kLeft, kFailed, kWrongBits };
inline constexpr int kLeaseEnds = 6;

const char* LeaseEndName(LeaseEnd end);

// Who is in the cluster, under which incarnation, and until when. A worker id has at most one
// living incarnation; an incarnation whose lease ended never comes back. Example:
//   registry.Add(registration, now);  registry.Renew(name, {.steps = 7}, now);
//   for (const WorkerName& lost : registry.TakeExpired(now)) …
// Not thread-safe.
class WorkerRegistry {
 public:
  struct Worker {
    WorkerName name;
    std::string address;
    std::string metrics_address;
    WorkerCapacity capacity;
    int64_t split_kv_size = 0;
    uint64_t steps = 0;  // At the last renewal.
    absl::Time lease_until;
    bool draining = false;
  };
  struct Progress {
    uint64_t steps = 0;
    bool idle = false;
  };

  explicit WorkerRegistry(absl::Duration lease) : lease_(lease) {}

  // Whether Add() would take it. FAILED_PRECONDITION: its lease ended before. ALREADY_EXISTS: the
  // worker id lives at another address, so two processes were given one name.
  absl::Status CheckAdd(const WorkerRegistration& registration) const;
  // Begins a lease. A living incarnation of the same id must have been removed before.
  void Add(const WorkerRegistration& registration, absl::Time now);

  // Renews the lease if the engine made progress since the last renewal or has nothing to do; a
  // heartbeat without progress is accepted but buys no time. NOT_FOUND: never seen here.
  // FAILED_PRECONDITION: the lease has ended, with the reason.
  absl::Status Renew(const WorkerName& name, Progress progress, absl::Time now);

  // NOT_FOUND and FAILED_PRECONDITION as in Renew().
  absl::Status CheckLiving(const WorkerName& name) const;
  // Gives every lease its full length again.
  void ExtendAll(absl::Time now);

  // Ends a lease at once. False when it does not live.
  bool Remove(const WorkerName& name, LeaseEnd why);
  // Why a worker failed whose lease had expired before it could say so. False when it was no such
  // lease, or is told again.
  bool Explain(const WorkerName& name, LeaseEnd why);
  // Ends leases that ran out; each is returned once, ascending by worker id.
  std::vector<WorkerName> TakeExpired(absl::Time now);

  // Takes nothing new from now on.
  void SetDraining(const WorkerName& name);

  // Null when it does not live. Valid until the next change.
  const Worker* Find(const WorkerName& name) const;
  const Worker* FindLiving(const base::WorkerId& id) const;
  // Ascending by worker id.
  const std::map<base::WorkerId, Worker>& living() const { return living_; }
  // Some incarnation of it has lived here before.
  bool HasLived(const base::WorkerId& id) const { return ended_.contains(id); }
  // Living and not draining, `except` apart.
  bool HasOther(const WorkerName& except) const;

 private:
  struct Ended {
    base::Incarnation incarnation;
    LeaseEnd why;
  };
  const Ended* FindEnded(const WorkerName& name) const;
  void Remember(const WorkerName& name, LeaseEnd why);

  const absl::Duration lease_;
  std::map<base::WorkerId, Worker> living_;
  // The last lives of each worker id; older ones cannot still be about.
  absl::flat_hash_map<base::WorkerId, std::deque<Ended>> ended_;
};

}  // namespace lockstep::scheduler
