#include "services/scheduler/core_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/scheduler/scheduler_wire.h"

namespace lockstep::scheduler {
namespace {

// A change of membership is published at once; load is published this often.
constexpr absl::Duration kPublishPeriod = absl::Milliseconds(250);

}  // namespace

CoreHost::CoreHost(Deps deps)
    : cluster_id_(std::move(deps.cluster_id)),
      control_timeout_(deps.control_timeout),
      metrics_(deps.metrics),
      clock_(deps.clock),
      logger_(std::move(deps.logger)),
      core_(std::move(deps.core)),
      control_(std::move(deps.control)),
      mirror_(deps.metrics) {
  base::MutexLock lock(&mutex_);
  published_ = Snapshot();
  UpdateGauges();
}

absl::Status CoreHost::CheckCluster(const std::string& cluster_id) const {
  if (cluster_id == cluster_id_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cluster_id: \"", cluster_id, "\" is not this cluster, \"", cluster_id_, "\""));
}

absl::StatusOr<v1::RegisterResponse> CoreHost::Register(const v1::RegisterRequest& request,
                                                        absl::Duration lease) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCluster(request.cluster_id()));
  const WorkerRegistration registration = DecodeRegistration(request);
  base::MutexLock lock(&mutex_);
  const absl::StatusOr<SchedulerCore::RegisterAnswer> answer = core_->Register(registration);
  if (answer.ok()) {
    example_ = request;
    example_->clear_held();
    addresses_[registration.name] = registration.address;
    logger_.Info("worker_registered", {{"worker", registration.name.id},
                                       {"incarnation", registration.name.incarnation},
                                       {"address", registration.address},
                                       {"held_tickets", registration.held.size()}});
  } else {
    logger_.Warning("registration_refused", {{"worker", registration.name.id},
                                             {"address", registration.address},
                                             {"error", answer.status()}});
  }
  CarryOut();
  if (!answer.ok()) return answer.status();
  v1::RegisterResponse response;
  response.set_lease_seconds(absl::ToDoubleSeconds(lease));
  response.set_scheduler_epoch(answer->scheduler_epoch);
  response.set_admission_epoch(answer->admission_epoch.value());
  return response;
}

absl::StatusOr<v1::HeartbeatResponse> CoreHost::Heartbeat(const v1::HeartbeatRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCluster(request.worker().cluster_id()));
  const WorkerReport report = DecodeReport(request);
  base::MutexLock lock(&mutex_);
  const absl::StatusOr<base::Epoch> epoch = core_->Heartbeat(report);
  CarryOut();
  if (!epoch.ok()) return epoch.status();
  v1::HeartbeatResponse response;
  response.set_admission_epoch(epoch->value());
  return response;
}

absl::StatusOr<v1::LeaveResponse> CoreHost::Leave(const v1::LeaveRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCluster(request.worker().cluster_id()));
  if (request.drain() && request.fault() != v1::WORKER_FAULT_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("fault = ", request.fault(), ": a worker that drains has none"));
  }
  const WorkerName name = DecodeWorker(request.worker());
  const LeaseEnd why = DecodeFault(request.fault());
  base::MutexLock lock(&mutex_);
  const absl::StatusOr<bool> others =
      request.drain() ? core_->Drain(name, request.force()) : core_->Leave(name, why);
  if (others.ok()) {
    logger_.Info("worker_leaves", {{"worker", name.id},
                                   {"drain", request.drain()},
                                   {"force", request.force()},
                                   {"others_available", *others}});
  }
  CarryOut();
  if (!others.ok()) return others.status();
  v1::LeaveResponse response;
  response.set_others_available(*others);
  return response;
}

absl::StatusOr<v1::GetStateResponse> CoreHost::GetState() {
  base::MutexLock lock(&mutex_);
  const CoreState state = core_->state();
  v1::GetStateResponse response;
  response.set_paused(state.pause.has_value());
  if (state.pause.has_value()) response.set_pause_mode(EncodePauseMode(*state.pause));
  response.set_epoch(state.epoch.value());
  response.set_running_sequences(state.running_sequences);
  response.set_queued_sequences(state.queued_sequences);
  if (core_->contract().has_value()) {
    response.set_weight_version(core_->contract()->weight_version.value());
  }
  return response;
}

absl::StatusOr<v1::GetClusterInfoResponse> CoreHost::GetClusterInfo(
    const v1::GetClusterInfoRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCluster(request.cluster_id()));
  base::MutexLock lock(&mutex_);
  if (!example_.has_value()) {
    return absl::FailedPreconditionError("no worker has registered yet");
  }
  v1::GetClusterInfoResponse response;
  *response.mutable_fingerprint() = example_->fingerprint();
  *response.mutable_model() = example_->model();
  response.set_context_tokens_max(example_->capacity().context_tokens_max());
  response.set_kv_blocks_largest_worker(example_->capacity().kv_blocks());
  response.set_kv_block_tokens(example_->capacity().kv_block_tokens());
  for (const auto& [id, worker] : core_->registry().living()) {
    response.set_context_tokens_max(
        std::min(response.context_tokens_max(), worker.capacity.context_tokens_max));
    response.set_kv_blocks_largest_worker(
        std::max(response.kv_blocks_largest_worker(), worker.capacity.kv_blocks));
  }
  response.set_weight_version(example_->weight_version());
  response.set_weights_digest(example_->weights_digest());
  response.set_admission_epoch(core_->state().epoch.value());
  for (const WorkerView& view : core_->Workers()) {
    *response.add_workers() = EncodeView(cluster_id_, view);
  }
  return response;
}

absl::StatusOr<RouterStream> CoreHost::OpenRouter(const std::string& router_id, AdmitSink* sink) {
  base::MutexLock lock(&mutex_);
  if (closed_.has_value()) return *closed_;
  const RouterStream stream(++stream_count_);
  routers_.emplace(stream, sink);
  logger_.Info("router_connected", {{"router", router_id}, {"stream", stream}});
  v1::AdmitEvent event;
  event.set_admission_epoch(core_->state().epoch.value());
  sink->Send(std::move(event));
  UpdateGauges();
  return stream;
}

void CoreHost::OnAdmitCommand(RouterStream stream, const v1::AdmitCommand& command) {
  const absl::Time now = clock_->Now();
  std::vector<AdmissionRequest> requests;
  requests.reserve(command.requests_size());
  for (const v1::AdmitRequest& request : command.requests()) {
    requests.push_back(DecodeAdmission(request, stream, now));
  }
  std::vector<AdmissionRequest> used;
  for (const v1::AdmitRequest& request : command.used()) {
    used.push_back(DecodeAdmission(request, stream, now));
  }
  std::vector<base::TicketId> released;
  for (const uint64_t ticket : command.released_tickets()) released.emplace_back(ticket);
  base::MutexLock lock(&mutex_);
  if (!routers_.contains(stream)) return;
  // A ticket may have been used and ended since the last command, and what is given back makes room
  // for what is asked for.
  if (!used.empty()) core_->Use(used);
  if (!released.empty()) core_->Release(released);
  if (command.withdrawn_handles_size() > 0) {
    core_->Withdraw(stream,
                    {command.withdrawn_handles().begin(), command.withdrawn_handles().end()});
  }
  core_->Admit(std::move(requests));  // Without any too: it finishes what waited for tickets.
  CarryOut();
}

void CoreHost::CloseRouter(RouterStream stream) {
  base::MutexLock lock(&mutex_);
  if (routers_.erase(stream) == 0) return;
  logger_.Info("router_disconnected", {{"stream", stream}});
  core_->CloseStream(stream);
  CarryOut();
}

absl::Status CoreHost::OpenWatch(WatchSink* sink) {
  base::MutexLock lock(&mutex_);
  if (closed_.has_value()) return *closed_;
  watches_.push_back(sink);
  sink->Send(Snapshot());
  return absl::OkStatus();
}

void CoreHost::CloseWatch(WatchSink* sink) {
  base::MutexLock lock(&mutex_);
  watches_.erase(std::remove(watches_.begin(), watches_.end(), sink), watches_.end());
}

absl::Status CoreHost::Operate(
    const std::function<absl::StatusOr<OperationId>(SchedulerCore&)>& begin, OperationDone done) {
  base::MutexLock lock(&mutex_);
  const absl::StatusOr<OperationId> id = begin(*core_);
  if (id.ok()) operations_.emplace(*id, std::move(done));
  CarryOut();
  return id.status();
}

void CoreHost::Tick() {
  base::MutexLock lock(&mutex_);
  core_->Tick();
  CarryOut();
  UpdateGauges();
  if (publish_now_ || clock_->Now() - published_at_ >= kPublishPeriod) Publish();
}

void CoreHost::CloseAll(const absl::Status& status) {
  base::MutexLock lock(&mutex_);
  closed_ = status;
  for (const auto& [stream, sink] : routers_) sink->Close(status);
  for (WatchSink* sink : watches_) sink->Close(status);
}

void CoreHost::Shutdown() {
  base::MutexLock lock(&mutex_);
  shut_down_ = true;
}

}  // namespace lockstep::scheduler
