#pragma once

#include "absl/status/status.h"
#include "common/metrics/metric.h"
#include "services/router/route_policy.h"
#include "services/router/sequence_types.h"

namespace lockstep::router {

// Why a sequence had to leave a worker it was started on.
enum class FailoverCause {
  kLeaseLost,
  kStreamBroken,
  kHandOff,
  kWorkerError,
  kBadFrame,
};

// All metrics of the router. Thread-safe.
struct RouterMetrics {
  explicit RouterMetrics(metrics::Registry* registry);

  metrics::Gauge sequences;
  metrics::Gauge prompt_bytes;
  metrics::Counter opened;
  metrics::CounterBy<EndReason> ended;
  metrics::CounterBy<RouteReason> routed;
  metrics::Counter started_ahead;
  metrics::CounterBy<FailoverCause> resumptions;
  metrics::CounterBy<absl::StatusCode> refusals;
  metrics::CounterBy<absl::StatusCode> admission_errors;
  metrics::Counter deltas;
  metrics::Counter tokens;
  metrics::Counter stale_deltas;
  metrics::Counter duplicate_positions;
  metrics::Counter bit_mismatches;
  metrics::Counter quarantined;
  metrics::Gauge workers;
  metrics::Gauge scheduler_connected;
  metrics::Histogram open_to_start_seconds;
  metrics::Histogram event_seconds;
};

}  // namespace lockstep::router
