#include "services/scheduler/scheduler_service.h"

#include <functional>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/rpc/handler.h"
#include "services/scheduler/admit_handler.h"
#include "services/scheduler/scheduler_wire.h"
#include "services/scheduler/watch_handler.h"

namespace lockstep::scheduler {
namespace {

// A call that is answered at once.
template <typename Request, typename Response>
class DirectHandler final : public rpc::UnaryHandler<Request, Response> {
 public:
  using Body = std::function<absl::StatusOr<Response>(const Request&)>;
  DirectHandler(Body body, grpc::CallbackServerContext* context, const Request* request,
                Response* response)
      : rpc::UnaryHandler<Request, Response>(context, request, response), body_(std::move(body)) {}

 private:
  void Start() override {
    if (absl::Status status = rpc::CheckHasDeadline(this->scope()); !status.ok()) {
      return this->Respond(std::move(status));
    }
    this->Respond(body_(this->request()));
  }

  const Body body_;
};

// A call that is answered when an operation has finished. When its client goes first, the operation
// goes on.
template <typename Request, typename Response>
class OperationHandler final : public rpc::UnaryHandler<Request, Response> {
 public:
  using Begin = std::function<absl::StatusOr<OperationId>(const Request&, SchedulerCore&)>;
  using Encode = std::function<Response(const OperationResult&)>;
  OperationHandler(std::shared_ptr<CoreHost> host, Begin begin, Encode encode,
                   grpc::CallbackServerContext* context, const Request* request, Response* response)
      : rpc::UnaryHandler<Request, Response>(context, request, response),
        host_(std::move(host)),
        begin_(std::move(begin)),
        encode_(std::move(encode)) {}

 private:
  void Start() override {
    absl::Status status = rpc::CheckHasDeadline(this->scope());
    if (status.ok()) {
      status = host_->Operate([&](SchedulerCore& core) { return begin_(this->request(), core); },
                              [self = rpc::SharedFrom(this)](const OperationResult& result) {
                                if (!result.status.ok()) return self->Respond(result.status);
                                self->Respond(self->encode_(result));
                              });
    }
    if (!status.ok()) this->Respond(std::move(status));
  }

  const std::shared_ptr<CoreHost> host_;
  const Begin begin_;
  const Encode encode_;
};

template <typename Request, typename Response, typename Body>
grpc::ServerUnaryReactor* Direct(Body body, grpc::CallbackServerContext* context,
                                 const Request* request, Response* response) {
  return rpc::StartHandler<DirectHandler<Request, Response>>(std::move(body), context, request,
                                                             response);
}

absl::StatusOr<OperationId> BeginAbort(const v1::AbortRequest& request, SchedulerCore& core) {
  if (request.all()) return core.AbortAll();
  std::vector<base::RequestId> ids;
  for (const std::string& id : request.request_ids()) ids.emplace_back(id);
  return core.Abort(ids);
}

v1::AbortResponse EncodeAbort(const OperationResult& result) {
  v1::AbortResponse response;
  response.set_aborted_sequences(result.aborted_sequences);
  response.set_unknown_requests(result.unknown_requests);
  for (const base::WorkerId& silent : result.silent_workers) {
    response.add_silent_workers(silent.value());
  }
  response.set_epoch(result.epoch.value());
  return response;
}

absl::StatusOr<OperationId> BeginPause(const v1::PauseRequest& request, SchedulerCore& core) {
  LOCKSTEP_ASSIGN_OR_RETURN(const PauseMode mode, DecodePauseMode(request.mode()));
  return core.Pause(mode);
}

template <typename Response>
Response EncodeEpoch(const OperationResult& result) {
  Response response;
  response.set_epoch(result.epoch.value());
  return response;
}

}  // namespace

grpc::ServerUnaryReactor* SchedulerService::Register(grpc::CallbackServerContext* context,
                                                     const v1::RegisterRequest* request,
                                                     v1::RegisterResponse* response) {
  return Direct([host = host_, lease = options_.lease](
                    const v1::RegisterRequest& asked) { return host->Register(asked, lease); },
                context, request, response);
}

grpc::ServerUnaryReactor* SchedulerService::Heartbeat(grpc::CallbackServerContext* context,
                                                      const v1::HeartbeatRequest* request,
                                                      v1::HeartbeatResponse* response) {
  return Direct(
      [host = host_](const v1::HeartbeatRequest& asked) { return host->Heartbeat(asked); }, context,
      request, response);
}

grpc::ServerUnaryReactor* SchedulerService::Leave(grpc::CallbackServerContext* context,
                                                  const v1::LeaveRequest* request,
                                                  v1::LeaveResponse* response) {
  return Direct([host = host_](const v1::LeaveRequest& asked) { return host->Leave(asked); },
                context, request, response);
}

grpc::ServerWriteReactor<v1::WorkerSnapshot>* SchedulerService::WatchWorkers(
    grpc::CallbackServerContext* context, const v1::WatchWorkersRequest* request) {
  return rpc::StartHandler<WatchHandler>(host_, options_.cluster_id, context, request);
}

grpc::ServerBidiReactor<v1::AdmitCommand, v1::AdmitEvent>* SchedulerService::Admit(
    grpc::CallbackServerContext* context) {
  return rpc::StartHandler<AdmitHandler>(host_, options_.cluster_id, context);
}

grpc::ServerUnaryReactor* SchedulerService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  return rpc::StartHandler<OperationHandler<v1::AbortRequest, v1::AbortResponse>>(
      host_, BeginAbort, EncodeAbort, context, request, response);
}

grpc::ServerUnaryReactor* SchedulerService::Pause(grpc::CallbackServerContext* context,
                                                  const v1::PauseRequest* request,
                                                  v1::PauseResponse* response) {
  return rpc::StartHandler<OperationHandler<v1::PauseRequest, v1::PauseResponse>>(
      host_, BeginPause, EncodeEpoch<v1::PauseResponse>, context, request, response);
}

grpc::ServerUnaryReactor* SchedulerService::Resume(grpc::CallbackServerContext* context,
                                                   const v1::ResumeRequest* request,
                                                   v1::ResumeResponse* response) {
  return rpc::StartHandler<OperationHandler<v1::ResumeRequest, v1::ResumeResponse>>(
      host_, [](const v1::ResumeRequest&, SchedulerCore& core) { return core.Resume(); },
      EncodeEpoch<v1::ResumeResponse>, context, request, response);
}

grpc::ServerUnaryReactor* SchedulerService::GetState(grpc::CallbackServerContext* context,
                                                     const v1::GetStateRequest* request,
                                                     v1::GetStateResponse* response) {
  return Direct([host = host_](const v1::GetStateRequest&) { return host->GetState(); }, context,
                request, response);
}

grpc::ServerUnaryReactor* SchedulerService::FlushCache(grpc::CallbackServerContext* context,
                                                       const v1::FlushCacheRequest* request,
                                                       v1::FlushCacheResponse* response) {
  return rpc::StartHandler<OperationHandler<v1::FlushCacheRequest, v1::FlushCacheResponse>>(
      host_,
      [](const v1::FlushCacheRequest& asked, SchedulerCore& core) -> absl::StatusOr<OperationId> {
        return core.FlushCache(asked.has_cache_namespace()
                                   ? std::optional<std::string>(asked.cache_namespace())
                                   : std::nullopt);
      },
      [](const OperationResult& result) {
        v1::FlushCacheResponse response;
        response.set_freed_blocks(result.freed_blocks);
        return response;
      },
      context, request, response);
}

grpc::ServerUnaryReactor* SchedulerService::GetClusterInfo(grpc::CallbackServerContext* context,
                                                           const v1::GetClusterInfoRequest* request,
                                                           v1::GetClusterInfoResponse* response) {
  return Direct([host = host_](
                    const v1::GetClusterInfoRequest& asked) { return host->GetClusterInfo(asked); },
                context, request, response);
}

}  // namespace lockstep::scheduler
