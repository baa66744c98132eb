#pragma once

#include "common/metrics/buckets.h"
#include "common/metrics/metric.h"
#include "common/metrics/registry.h"
#include "services/worker/engine/overhead_metrics.h"
#include "services/worker/engine/step_output.h"

namespace lockstep::worker {

// What the engine of one worker counts and measures. Tokens are counted once they are computed, so
// recomputation after a preemption counts again.
struct EngineMetrics {
  explicit EngineMetrics(metrics::Registry* registry)
      : tokens_generated(registry, "lockstep_worker_generated_tokens_total", "Tokens drawn."),
        tokens_prefilled(registry, "lockstep_worker_prefilled_tokens_total",
                         "Tokens computed in prefill, of prompts and of tokens that were generated "
                         "before a preemption or resumption."),
        prompt_tokens_prefilled(registry, "lockstep_worker_prefilled_prompt_tokens_total",
                                "Prompt tokens computed in prefill."),
        prefill_chunks(registry, "lockstep_worker_prefill_chunks_total", "Prefill chunks run."),
        prefill_cuts(registry, "lockstep_worker_prefill_cuts_total",
                     "Prefill chunks that ended before the end of their sequence's prefill."),
        prefix_lookup_tokens(registry, "lockstep_worker_prefix_lookup_tokens_total",
                             "Tokens looked up in the prefix cache."),
        prefix_hit_tokens(registry, "lockstep_worker_prefix_hit_tokens_total",
                          "Tokens found in the prefix cache."),
        prefix_waits(registry, "lockstep_worker_prefix_waits_total",
                     "Sequences that waited for a prefix that another one was computing."),
        preemptions(registry, "lockstep_worker_preemptions_total",
                    "Sequences that lost their KV blocks to an older one."),
        resumptions(registry, "lockstep_worker_resumptions_total",
                    "Sequences started with tokens that were generated before."),
        steps(registry, "lockstep_worker_steps_total", "Steps run."),
        audit_rows(registry, "lockstep_worker_audit_rows_total",
                   "Rows of linear layers that the audit computed again by the reference kernel."),
        audit_mismatches(registry, "lockstep_worker_audit_mismatches_total",
                         "Audited rows whose bits were others: the first ends the worker."),
        sequences_ended(registry, "lockstep_worker_sequences_ended_total",
                        "Sequences ended, by reason.", "reason",
                        {"stop", "length", "abort", "error"}),
        sequences_handed_off(registry, "lockstep_worker_sequences_handed_off_total",
                             "Sequences given back by a drain."),
        sequences_refused(registry, "lockstep_worker_sequences_refused_total",
                          "Starts refused by the engine: bad input or no room."),
        kv_blocks_free(registry, "lockstep_worker_kv_blocks_free",
                       "KV blocks without a user, cached ones included."),
        kv_blocks_used(registry, "lockstep_worker_kv_blocks_used", "KV blocks that sequences use."),
        kv_blocks_cached(registry, "lockstep_worker_kv_blocks_cached",
                         "KV blocks known to the prefix cache, in use or not."),
        sequences_running(registry, "lockstep_worker_sequences_running",
                          "Sequences that hold KV blocks."),
        sequences_waiting(registry, "lockstep_worker_sequences_waiting",
                          "Sequences that hold none."),
        batch_sequences_max(registry, "lockstep_worker_batch_sequences_max",
                            "Largest number of sequences in one step since start."),
        ranks(registry, "lockstep_worker_ranks", "Ranks that share the model."),
        batch_sequences(registry, "lockstep_worker_batch_sequences", "Sequences in a step.",
                        metrics::PowerOfTwoBuckets(10)),
        batch_rows(registry, "lockstep_worker_batch_rows", "Tokens run in a step.",
                   metrics::PowerOfTwoBuckets(14)),
        step_seconds(registry, "lockstep_worker_step_seconds", "Time of a step in the executor.",
                     metrics::StepSecondsBuckets()),
        plan_seconds(registry, "lockstep_worker_plan_seconds", "Time of choosing what a step runs.",
                     metrics::StepSecondsBuckets()),
        first_token_seconds(registry, "lockstep_worker_first_token_seconds",
                            "From a sequence's start on this worker to its first new token.",
                            metrics::LatencySecondsBuckets()),
        inter_token_seconds(registry, "lockstep_worker_inter_token_seconds",
                            "Between two new tokens of one sequence.",
                            metrics::LatencySecondsBuckets()),
        queue_seconds(registry, "lockstep_worker_queue_seconds",
                      "From a sequence's start on this worker to its first step.",
                      metrics::RequestSecondsBuckets()),
        overhead(registry) {}

  metrics::Counter tokens_generated;
  metrics::Counter tokens_prefilled;
  metrics::Counter prompt_tokens_prefilled;
  metrics::Counter prefill_chunks;
  metrics::Counter prefill_cuts;
  metrics::Counter prefix_lookup_tokens;
  metrics::Counter prefix_hit_tokens;
  metrics::Counter prefix_waits;
  metrics::Counter preemptions;
  metrics::Counter resumptions;
  metrics::Counter steps;
  metrics::Counter audit_rows;
  metrics::Counter audit_mismatches;
  metrics::CounterBy<EndReason> sequences_ended;
  metrics::Counter sequences_handed_off;
  metrics::Counter sequences_refused;
  metrics::Gauge kv_blocks_free;
  metrics::Gauge kv_blocks_used;
  metrics::Gauge kv_blocks_cached;
  metrics::Gauge sequences_running;
  metrics::Gauge sequences_waiting;
  metrics::Gauge batch_sequences_max;
  metrics::Gauge ranks;
  metrics::Histogram batch_sequences;
  metrics::Histogram batch_rows;
  metrics::Histogram step_seconds;
  metrics::Histogram plan_seconds;
  metrics::Histogram first_token_seconds;
  metrics::Histogram inter_token_seconds;
  metrics::Histogram queue_seconds;
  OverheadMetrics overhead;
};

}  // namespace lockstep::worker
