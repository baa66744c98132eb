#pragma once

#include "absl/status/status.h"
#include "common/metrics/metric.h"
#include "services/scheduler/decisions.h"

namespace lockstep::scheduler {

// All metrics of the scheduler. Thread-safe.
struct SchedulerMetrics {
  explicit SchedulerMetrics(metrics::Registry* registry);

  metrics::Counter admissions;
  metrics::Counter admissions_ahead;
  metrics::CounterBy<absl::StatusCode> refusals;
  metrics::Histogram wait_seconds;
  metrics::Gauge queued_sequences;
  metrics::Gauge running_sequences;
  metrics::Gauge workers;
  metrics::Gauge workers_draining;
  metrics::Counter registrations;
  metrics::Counter registrations_refused;
  metrics::CounterBy<LeaseEnd> leases_ended;
  metrics::Counter cuts;
  metrics::Counter plan_violations;
  metrics::Gauge kv_blocks;
  metrics::Gauge kv_blocks_reserved;
  metrics::Gauge admission_epoch;
  metrics::Gauge scheduler_epoch;
  metrics::Gauge paused;
  metrics::Gauge recovering;
  metrics::Gauge routers;
};

// Carries what the core has counted since the last call over into `metrics`.
class MetricsMirror {
 public:
  explicit MetricsMirror(SchedulerMetrics* metrics) : metrics_(metrics) {}
  void Count(const CoreCounters& counters);

 private:
  SchedulerMetrics* const metrics_;
  CoreCounters counted_;
};

}  // namespace lockstep::scheduler
