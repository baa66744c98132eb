#pragma once

#include "common/metrics/metric.h"
#include "common/metrics/registry.h"

namespace lockstep::service {

// Of a process of any role.
struct ProcessMetrics {
  explicit ProcessMetrics(metrics::Registry* registry)
      : ready(registry, "lockstep_process_ready",
              "1 while the health name `ready` says that work can be taken, else 0: while the "
              "process starts, drains, or lacks what it needs."),
        start_seconds(registry, "lockstep_process_start_seconds",
                      "When the process started, in seconds since 1970.") {}
  metrics::Gauge ready;
  metrics::Gauge start_seconds;
};

}  // namespace lockstep::service
