#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace lockstep::router {

// How long the router bears the silence of a worker. One that still renews its lease, but whose
// packets do not arrive here, is found by silence alone.
struct WorkerPatience {
  absl::Duration silence;  // Until it is pinged.
  absl::Duration answer;   // Until an unanswered ping breaks its stream.
  friend bool operator==(const WorkerPatience&, const WorkerPatience&) = default;
};

// A worker takes no more pings than one each half second, and a busy one is not quicker to answer.
inline constexpr absl::Duration kSilenceMin = absl::Milliseconds(600);
inline constexpr absl::Duration kAnswerMin = absl::Milliseconds(500);

// A scheduler that tells none is older than the field; this is the default.
inline constexpr absl::Duration kLeaseUntold = absl::Seconds(3);

// Together less than the lease, so that the sequences of a worker that is cut off go on as soon as
// those of one that hangs; only below 1.2 s is the lease the shorter one.
inline WorkerPatience PatienceFor(absl::Duration lease) {
  if (lease <= absl::ZeroDuration()) lease = kLeaseUntold;
  return {.silence = std::max(kSilenceMin, lease / 3), .answer = std::max(kAnswerMin, lease / 2)};
}

}  // namespace lockstep::router
