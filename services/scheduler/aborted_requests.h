#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/ids.h"

namespace lockstep::scheduler {

// Request ids that were aborted a short while ago, so that an admission which was on its way when
// the abort came does not slip through. Bounded in time and number. Not thread-safe.
class AbortedRequests {
 public:
  struct Options {
    absl::Duration memory = absl::Seconds(10);
    size_t requests_max = 1 << 20;
  };
  explicit AbortedRequests(Options options) : options_(options) {}

  void Add(const base::RequestId& request, absl::Time now);
  bool Contains(const base::RequestId& request, absl::Time now) const;
  void Expire(absl::Time now);
  size_t size() const { return until_.size(); }

 private:
  const Options options_;
  absl::flat_hash_map<base::RequestId, absl::Time> until_;
  std::deque<std::pair<absl::Time, base::RequestId>> order_;  // Ascending by time.
};

}  // namespace lockstep::scheduler
