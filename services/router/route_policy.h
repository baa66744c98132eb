#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "services/router/sequence_types.h"

namespace lockstep::router {

// A worker that takes new sequences, as a policy sees it.
struct WorkerLoad {
  const WorkerKey* worker = nullptr;
  uint64_t name_hash = 0;  // Of the worker's id: a restarted worker keeps its place.
  int64_t load = 0;        // Sequences on it or on their way to it.
};

struct RouteRequest {
  uint64_t affinity_key = 0;   // Equal keys want one worker.
  int64_t sequence_count = 1;  // Placed together.
};

// Why the first candidate is the first.
enum class RouteReason {
  kAffine,    // The preferred worker of the key.
  kOverflow,  // The preferred one is over its bound.
  kOnly,      // There is one worker.
};

struct RouteChoice {
  std::vector<const WorkerKey*> candidates;  // Best first; empty when there is no worker.
  RouteReason reason = RouteReason::kOnly;
};

// Ranks workers for a request. A pure function of its arguments: no state, no clock, so that the
// same snapshot gives the same choice in every router. Thread-safe.
class RoutePolicy {
 public:
  virtual ~RoutePolicy() = default;
  // `workers` are ascending by worker id; the choice points into them.
  virtual RouteChoice Rank(const RouteRequest& request,
                           std::span<const WorkerLoad> workers) const = 0;
};

}  // namespace lockstep::router
