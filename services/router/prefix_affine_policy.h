#pragma once

#include <cstdint>
#include <span>

#include "services/router/route_policy.h"

namespace lockstep::router {

// Rendezvous hashing with bounded load: every (key, worker) pair has a score, the highest score is
// the preferred worker, so that a worker's coming or going moves only its own keys. A worker whose
// load would pass load_bound_percent of the mean comes after all that are below, since a cache hit
// is worth less than an idle machine.
//
// A group placed together is never refused by an empty worker: its samples share one prefill.
class PrefixAffinePolicy final : public RoutePolicy {
 public:
  struct Options {
    int64_t load_bound_percent = 115;
    int64_t candidates_max = 4;
  };
  explicit PrefixAffinePolicy(Options options) : options_(options) {}

  RouteChoice Rank(const RouteRequest& request, std::span<const WorkerLoad> workers) const override;

 private:
  const Options options_;
};

}  // namespace lockstep::router
