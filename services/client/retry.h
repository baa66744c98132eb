#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/client/unreached.h"

namespace lockstep::client {

// Whether and when one unary call is made again: the policy of everything in this room. Every call
// may be, since nothing of a lost answer was seen and the same request gives the same bits. Made
// again is what ends with UNAVAILABLE, for so long as `patience` since it failed first, or with
// CANCELLED, since nobody here cancels: a gateway that drains refuses, and one that ends takes its
// connections with it. Pauses go from 50 ms to 1 s. Not thread-safe.
class Retry {
 public:
  Retry(absl::Duration patience, absl::Time begin, absl::Time deadline);

  struct Failure {
    absl::Status status;
    absl::Time now;
    // Since when nobody who calls by the same channel got an answer.
    absl::Time lost_since = absl::InfiniteFuture();
    // Whether somebody got one at any time, so that the client is set as the cluster is.
    bool answered_before = false;
  };
  // The pause before the next try, or none when the call is given up.
  std::optional<absl::Duration> PauseAfter(const Failure& failure);
  // What was done until a failure at `now`.
  Attempts attempts(absl::Time now) const { return {.count = count_, .time = now - begin_}; }

 private:
  const absl::Duration patience_;
  const absl::Time begin_;
  const absl::Time deadline_;
  int count_ = 0;  // of tries that failed
  absl::Duration pause_;
  absl::Time failed_first_ = absl::InfiniteFuture();
};

// Whether another gateway, or the same one later, may answer a call that ended so.
bool AnotherMayServe(const absl::Status& status);

}  // namespace lockstep::client
