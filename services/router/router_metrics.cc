#include "services/router/router_metrics.h"

#include "common/metrics/buckets.h"

namespace lockstep::router {

RouterMetrics::RouterMetrics(metrics::Registry* registry)
    : sequences(registry, "lockstep_router_sequences", "Sequences in work."),
      prompt_bytes(
          registry, "lockstep_router_prompt_bytes",
          "Bytes of token ids and parameters of the sequences in work; samples of a prompt "
          "count it once. At most prompt_bytes_max."),
      opened(registry, "lockstep_router_opened_total", "Sequences that gateways opened."),
      ended(registry, "lockstep_router_ended_total", "Sequences ended, by reason.", "reason",
            {"stop", "length", "abort", "error", "partial"}),
      routed(registry, "lockstep_router_routed_total",
             "Sequences placed, by why the first candidate was chosen.", "reason",
             {"affine", "overflow", "only"}),
      started_ahead(registry, "lockstep_router_started_ahead_total",
                    "Sequences started with a ticket that was granted in advance."),
      resumptions(registry, "lockstep_router_resumptions_total",
                  "Started sequences that went on elsewhere, by cause.", "cause",
                  {"lease_lost", "stream_broken", "hand_off", "worker_error", "bad_frame"}),
      refusals(registry, "lockstep_router_refusals_total", "Starts that workers refused, by code.",
               "code", metrics::StatusCodeLabels()),
      admission_errors(registry, "lockstep_router_admission_errors_total",
                       "Admissions that the scheduler refused, by code.", "code",
                       metrics::StatusCodeLabels()),
      deltas(registry, "lockstep_router_deltas_total", "Deltas passed to gateways."),
      tokens(registry, "lockstep_router_tokens_total", "Output tokens passed to gateways."),
      stale_deltas(registry, "lockstep_router_stale_deltas_total",
                   "Deltas dropped because they came from an attempt that is over."),
      duplicate_positions(registry, "lockstep_router_duplicate_positions_total",
                          "Positions dropped because they were delivered before, bits equal."),
      bit_mismatches(registry, "lockstep_router_bit_mismatches_total",
                     "Positions that came again with other bits. Must stay 0."),
      quarantined(registry, "lockstep_router_quarantined_total",
                  "Sequences failed because they had ended several workers."),
      workers(registry, "lockstep_router_workers", "Workers in the newest snapshot."),
      scheduler_connected(registry, "lockstep_router_scheduler_connected",
                          "1 while the admission stream to the scheduler is open."),
      open_to_start_seconds(registry, "lockstep_router_open_to_start_seconds",
                            "From a sequence's open to its first start command, admission and "
                            "queueing at the scheduler included.",
                            metrics::LatencySecondsBuckets()),
      event_seconds(registry, "lockstep_router_event_seconds",
                    "Router's own time for one message, waiting for its turn included.",
                    metrics::StepSecondsBuckets()) {}

}  // namespace lockstep::router
