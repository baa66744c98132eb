#include <algorithm>
#include <utility>

#include "google/protobuf/util/message_differencer.h"
#include "services/scheduler/core_host.h"
#include "services/scheduler/scheduler_wire.h"

// How the core's decisions reach routers, workers, callers, metrics and the log.
namespace lockstep::scheduler {

void CoreHost::CarryOut() {
  const Decisions decisions = core_->TakeDecisions();
  LogDecisions(decisions);
  SendEvents(decisions);
  for (const LostWorker& lost : decisions.lost) {
    const auto it = addresses_.find(lost.name);
    if (it == addresses_.end()) continue;
    // The next life may already be at the same address.
    const WorkerRegistry::Worker* next = core_->registry().FindLiving(lost.name.id);
    if (next == nullptr || next->address != it->second) control_->Forget(it->second);
    addresses_.erase(it);
  }
  for (const ControlCall& call : decisions.calls) MakeCall(call);
  for (const OperationResult& result : decisions.finished) {
    const auto it = operations_.find(result.operation);
    if (it == operations_.end()) continue;
    const OperationDone done = std::move(it->second);
    operations_.erase(it);
    done(result);
  }
  mirror_.Count(core_->counters());
  publish_now_ |= decisions.workers_changed;
}

void CoreHost::SendEvents(const Decisions& decisions) {
  const bool everybody = !decisions.lost.empty() || decisions.epoch_changed;
  if (decisions.outcomes.empty() && decisions.advance.empty() && !everybody) return;
  absl::flat_hash_map<RouterStream, v1::AdmitEvent> events;
  for (const AdmitOutcome& outcome : decisions.outcomes) {
    if (outcome.ticket.ok()) metrics_->wait_seconds.Observe(outcome.waited);
    if (!routers_.contains(outcome.stream)) continue;
    *events[outcome.stream].add_outcomes() = EncodeOutcome(cluster_id_, outcome);
  }
  for (const AdvanceGrant& grant : decisions.advance) {
    if (!routers_.contains(grant.stream)) continue;
    *events[grant.stream].add_advance_tickets() = EncodeAdvance(cluster_id_, grant);
  }
  if (everybody) {
    for (const auto& [stream, sink] : routers_) {
      v1::AdmitEvent& event = events[stream];
      for (const LostWorker& lost : decisions.lost) {
        *event.add_lost_workers() = EncodeWorker(cluster_id_, lost.name);
      }
    }
  }
  const uint64_t epoch = core_->state().epoch.value();
  for (auto& [stream, event] : events) {
    event.set_admission_epoch(epoch);
    routers_.at(stream)->Send(std::move(event));
  }
}

void CoreHost::MakeCall(const ControlCall& call) {
  // Half of an operation's time, so that a call that was lost is made once more.
  control_->Call(call, control_timeout_ / 2,
                 [host = weak_from_this(), operation = call.operation,
                  worker = call.worker](const absl::StatusOr<ControlReply>& reply) {
                   const std::shared_ptr<CoreHost> self = host.lock();
                   if (self == nullptr) return;
                   base::MutexLock lock(&self->mutex_);
                   if (self->shut_down_) return;
                   self->core_->OnControlReply(operation, worker, reply);
                   self->CarryOut();
                 });
}

void CoreHost::LogDecisions(const Decisions& decisions) {
  for (const std::string& violation : decisions.violations) {
    logger_.Error("plan_violation", {{"what", violation}});
  }
  for (const AdmitOutcome& outcome : decisions.outcomes) {
    const log::Logger logger = logger_.ForRequest(outcome.trace_id, outcome.request.value());
    if (outcome.ticket.ok()) {
      logger.Step("sequence_admitted", {{"sequence", outcome.sequence},
                                        {"worker", outcome.ticket->worker.id},
                                        {"attempt", outcome.ticket->attempt},
                                        {"wait_seconds", outcome.waited}});
    } else {
      logger.Step("sequence_not_admitted", {{"sequence", outcome.sequence},
                                            {"error", outcome.ticket.status()},
                                            {"wait_seconds", outcome.waited}});
    }
  }
  for (const AdmissionRequest& used : decisions.used) {
    logger_.ForRequest(used.trace_id, used.request.value())
        .Step("sequence_admitted_ahead",
              {{"sequence", used.sequence}, {"ticket", used.used_ticket}});
  }
  for (const LostWorker& lost : decisions.lost) {
    logger_.Warning("lease_ended", {{"worker", lost.name.id},
                                    {"incarnation", lost.name.incarnation},
                                    {"reason", LeaseEndName(lost.why)}});
  }
  for (const OperationResult& result : decisions.finished) {
    logger_.Info("operation_finished", {{"operation", result.operation},
                                        {"status", result.status},
                                        {"aborted_sequences", result.aborted_sequences},
                                        {"silent_workers", result.silent_workers.size()},
                                        {"admission_epoch", result.epoch}});
  }
}

void CoreHost::UpdateGauges() {
  const CoreState state = core_->state();
  metrics_->queued_sequences.Set(static_cast<double>(state.queued_sequences));
  metrics_->running_sequences.Set(static_cast<double>(state.running_sequences));
  metrics_->admission_epoch.Set(static_cast<double>(state.epoch.value()));
  metrics_->scheduler_epoch.Set(static_cast<double>(state.scheduler_epoch));
  metrics_->paused.Set(state.pause.has_value() ? 1 : 0);
  metrics_->recovering.Set(state.recovering ? 1 : 0);
  metrics_->routers.Set(static_cast<double>(routers_.size()));
  int64_t blocks = 0;
  int64_t draining = 0;
  for (const auto& [id, worker] : core_->registry().living()) {
    blocks += worker.capacity.kv_blocks;
    draining += worker.draining ? 1 : 0;
  }
  metrics_->workers.Set(static_cast<double>(core_->registry().living().size()));
  metrics_->workers_draining.Set(static_cast<double>(draining));
  metrics_->kv_blocks.Set(static_cast<double>(blocks));
  metrics_->kv_blocks_reserved.Set(static_cast<double>(core_->accounting().blocks_charged()));
}

std::shared_ptr<const v1::WorkerSnapshot> CoreHost::Snapshot() {
  auto snapshot = std::make_shared<v1::WorkerSnapshot>();
  for (const WorkerView& view : core_->Workers()) {
    *snapshot->add_workers() = EncodeView(cluster_id_, view);
  }
  snapshot->set_revision(revision_);
  const bool same = published_ != nullptr &&
                    google::protobuf::util::MessageDifferencer::Equals(*snapshot, *published_);
  if (same) return published_;
  snapshot->set_revision(++revision_);
  published_ = snapshot;
  return snapshot;
}

void CoreHost::Publish() {
  publish_now_ = false;
  published_at_ = clock_->Now();
  const std::shared_ptr<const v1::WorkerSnapshot> snapshot = Snapshot();
  // A watch that opened since the last publication has this revision already; sending it once more
  // is harmless.
  if (snapshot->revision() == sent_revision_) return;
  sent_revision_ = snapshot->revision();
  for (WatchSink* sink : watches_) sink->Send(snapshot);
}

}  // namespace lockstep::scheduler
