#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "lockstep/v1/scheduler.grpc.pb.h"
#include "services/scheduler/core_host.h"

namespace lockstep::scheduler {

// SchedulerService on top of the host: decode, ask, encode. Holds no state of its own.
class SchedulerService final : public v1::SchedulerService::CallbackService {
 public:
  struct Options {
    std::string cluster_id;
    absl::Duration lease;
  };
  SchedulerService(Options options, std::shared_ptr<CoreHost> host)
      : options_(std::move(options)), host_(std::move(host)) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;
  grpc::ServerWriteReactor<v1::WorkerSnapshot>* WatchWorkers(
      grpc::CallbackServerContext* context, const v1::WatchWorkersRequest* request) override;
  grpc::ServerBidiReactor<v1::AdmitCommand, v1::AdmitEvent>* Admit(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const v1::PauseRequest* request,
                                  v1::PauseResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::ResumeResponse* response) override;
  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const v1::GetStateRequest* request,
                                     v1::GetStateResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;
  grpc::ServerUnaryReactor* GetClusterInfo(grpc::CallbackServerContext* context,
                                           const v1::GetClusterInfoRequest* request,
                                           v1::GetClusterInfoResponse* response) override;

 private:
  const Options options_;
  const std::shared_ptr<CoreHost> host_;
};

}  // namespace lockstep::scheduler
