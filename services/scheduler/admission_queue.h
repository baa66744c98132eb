#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// Admissions that wait. Nothing in here holds a reservation. Order: sequences that ran before and
// lost their worker come first, then groups in order of arrival, members in order of arrival. A
// group larger than `turn_members` takes turns: each turn but its first has those in front of it
// that came before the turn began, so that a request of one sample does not wait for all of a group
// of a thousand, and a group waits for no more than one turn of each other. Where the first in line
// does not fit a worker, up to `overtake_max` behind it may be tried; once its group has waited for
// `ageing`, nothing behind passes it on any of its candidates, so the worker drains until it fits.
// Not thread-safe.
class AdmissionQueue {
 public:
  struct Options {
    size_t requests_max = 131072;
    absl::Duration ageing = absl::Seconds(1);
    int overtake_max = 64;
    // What a router places as one (its group_unit), whose samples share a prompt in the cache.
    int64_t turn_members = 16;
  };
  struct Waiting {
    AdmissionRequest request;
    absl::Time arrived;
    absl::Time group_arrived;  // What ageing counts from.
  };
  // Position in line.
  struct Place {
    int64_t rank = 0;  // 0: ran before.
    int64_t turn = 0;
    uint64_t group_number = 0;
    uint64_t request_number = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  explicit AdmissionQueue(Options options) : options_(options) {}

  // RESOURCE_EXHAUSTED with a retry delay when full, ALREADY_EXISTS when the handle waits already.
  // Moves from the request only when it is taken.
  absl::Status Push(AdmissionRequest&& request, absl::Time now);
  // Nullopt when it does not wait (any longer).
  std::optional<Waiting> Withdraw(RouterStream stream, uint64_t handle);
  // Takes out all that `unwanted` says, in line order. Looks at every request.
  std::vector<Waiting> TakeIf(const std::function<bool(const AdmissionRequest&)>& unwanted);
  // Takes out those whose deadline has passed, earliest first.
  std::vector<Waiting> TakeExpired(absl::Time now);
  // The worker takes nothing any more. Returns the requests left without a candidate.
  std::vector<Waiting> RemoveCandidate(const WorkerName& worker);

  // A new request may be granted on `worker` without waiting: nobody whom it would pass has waited
  // for the ageing. `attempt` as in AdmissionRequest.
  bool MayPass(const WorkerName& worker, int64_t attempt, absl::Time now) const;
  // Offers the room of `worker` to those who wait for it, in line. `grant` says whether it took the
  // request, which is then out of the queue.
  void Offer(const WorkerName& worker, absl::Time now,
             const std::function<bool(const Waiting&)>& grant);

  size_t size() const { return requests_.size(); }
  bool HasWaiters(const WorkerName& worker) const { return waiters_.contains(worker); }
  // How long the request at the head of the line has waited.
  absl::Duration OldestWait(absl::Time now) const;

 private:
  struct Group {
    Place first;  // Its numbers order the group.
    absl::Time arrived;
    int64_t waiting_count = 0;
  };
  using Handle = std::pair<RouterStream, uint64_t>;

  bool Aged(const Waiting& waiting, absl::Time now) const {
    return waiting.group_arrived + options_.ageing <= now;
  }
  static std::string GroupKey(const AdmissionRequest& request);
  // Takes one request out of every index.
  Waiting Take(const Place& place);

  const Options options_;
  uint64_t arrival_count_ = 0;
  int64_t turn_ = 0;  // The latest that was granted; newcomers have the next one.
  absl::btree_map<Place, Waiting> requests_;
  absl::flat_hash_map<Handle, Place> by_handle_;
  absl::flat_hash_map<std::string, Group> groups_;
  absl::flat_hash_map<WorkerName, absl::btree_set<Place>> waiters_;
  absl::btree_set<std::pair<absl::Time, Place>> deadlines_;
};

}  // namespace lockstep::scheduler
