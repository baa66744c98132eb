#include "services/scheduler/aborted_requests.h"

#include <algorithm>

namespace lockstep::scheduler {

void AbortedRequests::Granted(const base::RequestId& request) {
  if (granted_others_) return;
  granted_.insert(request);
  if (granted_.size() <= options_.granted_max) return;
  granted_others_ = true;
  granted_.clear();
}

void AbortedRequests::EpochBegins() {
  granted_.clear();
  granted_others_ = false;
}

bool AbortedRequests::EnteredNow(const absl::flat_hash_set<base::RequestId>& requests) const {
  if (granted_others_) return true;
  return std::any_of(requests.begin(), requests.end(),
                     [&](const base::RequestId& request) { return granted_.contains(request); });
}

void AbortedRequests::Add(const base::RequestId& request, base::Epoch epoch, absl::Time now) {
  const absl::Time until = now + options_.memory;
  aborts_[request] = {.epoch = epoch, .until = until};
  order_.emplace_back(until, request);
  last_ = now;
  Expire(now);
}

bool AbortedRequests::Ends(const base::RequestId& request, base::Epoch entry_epoch) const {
  const auto it = aborts_.find(request);
  return it != aborts_.end() && entry_epoch < it->second.epoch;
}

void AbortedRequests::Expire(absl::Time now) {
  while (!order_.empty() &&
         (order_.front().first <= now || order_.size() > options_.requests_max)) {
    // A request that was aborted again has a later entry of its own.
    const auto it = aborts_.find(order_.front().second);
    if (it != aborts_.end() && it->second.until == order_.front().first) aborts_.erase(it);
    order_.pop_front();
  }
}

}  // namespace lockstep::scheduler
