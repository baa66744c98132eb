#include "services/scheduler/scheduler_metrics.h"

#include "common/metrics/buckets.h"

namespace lockstep::scheduler {

SchedulerMetrics::SchedulerMetrics(metrics::Registry* registry)
    : admissions(registry, "lockstep_scheduler_admissions_total", "Tickets granted to sequences."),
      admissions_ahead(registry, "lockstep_scheduler_admissions_ahead_total",
                       "Of these, tickets granted before their sequence came."),
      refusals(registry, "lockstep_scheduler_refusals_total",
               "Admission requests refused, by status code.", "code", metrics::StatusCodeLabels()),
      wait_seconds(registry, "lockstep_scheduler_wait_seconds",
                   "Time from an admission request to its ticket.",
                   metrics::RequestSecondsBuckets()),
      queued_sequences(registry, "lockstep_scheduler_queued_sequences",
                       "Sequences that wait for admission."),
      running_sequences(registry, "lockstep_scheduler_running_sequences",
                        "Tickets that may still run."),
      workers(registry, "lockstep_scheduler_workers", "Workers with a lease."),
      workers_draining(registry, "lockstep_scheduler_workers_draining",
                       "Workers with a lease that take nothing new."),
      registrations(registry, "lockstep_scheduler_registrations_total", "Leases begun."),
      registrations_refused(registry, "lockstep_scheduler_registrations_refused_total",
                            "Registrations refused, such as for another contract."),
      leases_ended(registry, "lockstep_scheduler_leases_ended_total",
                   "Leases ended, by reason. A worker that says why it ends (failed, wrong_bits) "
                   "only after its lease has expired counts as both.",
                   "reason", {"expired", "replaced", "revoked", "left", "failed", "wrong_bits"}),
      cuts(registry, "lockstep_scheduler_cuts_total", "Prefill chunks audited."),
      plan_violations(registry, "lockstep_scheduler_plan_violations_total",
                      "Prefill chunks outside their plan or without a ticket; must stay 0."),
      kv_blocks(registry, "lockstep_scheduler_kv_blocks", "KV blocks of all living workers."),
      kv_blocks_reserved(registry, "lockstep_scheduler_kv_blocks_reserved",
                         "KV blocks promised to sequences beyond those in use."),
      admission_epoch(registry, "lockstep_scheduler_admission_epoch",
                      "Counted up by abort, pause and resume."),
      scheduler_epoch(registry, "lockstep_scheduler_epoch",
                      "Epoch of office, counted up at each start."),
      paused(registry, "lockstep_scheduler_paused", "1 while nothing is admitted by a pause."),
      recovering(registry, "lockstep_scheduler_recovering",
                 "1 while a restarted scheduler waits for its workers."),
      routers(registry, "lockstep_scheduler_routers", "Open admission streams.") {}

void MetricsMirror::Count(const CoreCounters& now) {
  metrics_->admissions.Increment(static_cast<double>(now.granted - counted_.granted));
  metrics_->admissions_ahead.Increment(
      static_cast<double>(now.used_advance - counted_.used_advance));
  for (size_t i = 0; i < now.refused.size(); ++i) {
    const int64_t more = now.refused[i] - counted_.refused[i];
    if (more == 0) continue;
    metrics_->refusals[static_cast<absl::StatusCode>(i)].Increment(static_cast<double>(more));
  }
  for (size_t i = 0; i < now.leases_ended.size(); ++i) {
    const int64_t more = now.leases_ended[i] - counted_.leases_ended[i];
    if (more == 0) continue;
    metrics_->leases_ended[static_cast<LeaseEnd>(i)].Increment(static_cast<double>(more));
  }
  metrics_->registrations.Increment(static_cast<double>(now.registered - counted_.registered));
  metrics_->registrations_refused.Increment(
      static_cast<double>(now.registrations_refused - counted_.registrations_refused));
  metrics_->cuts.Increment(static_cast<double>(now.cuts - counted_.cuts));
  metrics_->plan_violations.Increment(
      static_cast<double>(now.plan_violations - counted_.plan_violations));
  counted_ = now;
}

}  // namespace lockstep::scheduler
