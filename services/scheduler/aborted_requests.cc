#include "services/scheduler/aborted_requests.h"

namespace lockstep::scheduler {

void AbortedRequests::Add(const base::RequestId& request, absl::Time now) {
  const absl::Time until = now + options_.memory;
  until_[request] = until;
  order_.emplace_back(until, request);
  Expire(now);
}

bool AbortedRequests::Contains(const base::RequestId& request, absl::Time now) const {
  const auto it = until_.find(request);
  return it != until_.end() && it->second > now;
}

void AbortedRequests::Expire(absl::Time now) {
  while (!order_.empty() &&
         (order_.front().first <= now || order_.size() > options_.requests_max)) {
    // A request that was aborted again has a later entry of its own.
    const auto it = until_.find(order_.front().second);
    if (it != until_.end() && it->second == order_.front().first) until_.erase(it);
    order_.pop_front();
  }
}

}  // namespace lockstep::scheduler
