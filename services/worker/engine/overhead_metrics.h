#pragma once

#include "common/metrics/metric.h"
#include "common/metrics/registry.h"
#include "common/metrics/sparse.h"

namespace lockstep::worker {

// What determinism costs, as shadows measure it. `phase` is "decode" for steps in which every
// sequence has one row and draws from it, "prefill" for all others; `batch` is the power of two up
// to which sequences of a decode step, or tokens of a prefill step, are counted.
struct OverheadMetrics {
  explicit OverheadMetrics(metrics::Registry* registry)
      : ratio(registry, "lockstep_worker_determinism_overhead_ratio",
              "Time of the layers of a step over their time in normal mode, median of the last 9 "
              "shadows: 1.02 is 2 % slower. Absent while there was none.",
              {"phase", "batch"}),
        measured(registry, "lockstep_worker_determinism_overhead_measured_seconds",
                 "Unix time of the last shadow. Absent while there was none.", {"phase", "batch"}),
        served(registry, "lockstep_worker_served_step_seconds_total",
               "Time of steps: the weights of the ratios. Absent without shadows.",
               {"phase", "batch"}),
        weighted_ratio(registry, "lockstep_worker_determinism_overhead_weighted_ratio",
                       "The ratio of all steps served since start: of their time, to what they "
                       "would have taken in normal mode. Without those that have no ratio; absent "
                       "while none has.",
                       {}),
        shadows(registry, "lockstep_worker_shadows_total",
                "Shadows: steps that were run again in both modes."),
        shadow_seconds(registry, "lockstep_worker_shadow_seconds_total",
                       "Time that shadows took from serving.") {}

  metrics::Sparse<metrics::Gauge> ratio;
  metrics::Sparse<metrics::Gauge> measured;
  metrics::Sparse<metrics::Counter> served;
  metrics::Sparse<metrics::Gauge> weighted_ratio;
  metrics::Counter shadows;
  metrics::Counter shadow_seconds;
};

}  // namespace lockstep::worker
