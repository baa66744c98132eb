#pragma once

#include "lockstep/v1/worker.grpc.pb.h"
#include "services/worker/control_handler.h"
#include "services/worker/run_handler.h"

namespace lockstep::worker {

// The worker's RPCs, one handler class each.
class WorkerService final : public v1::WorkerService::CallbackService {
 public:
  WorkerService(const WorkerParts& parts, ControlRunner* runner) : parts_(parts), runner_(runner) {}

  grpc::ServerBidiReactor<v1::WorkerCommand, v1::WorkerFrame>* Run(
      grpc::CallbackServerContext* context) override {
    return rpc::StartHandler<RunHandler>(parts_, context);
  }
  grpc::ServerUnaryReactor* Control(grpc::CallbackServerContext* context,
                                    const v1::ControlRequest* request,
                                    v1::ControlResponse* response) override {
    return rpc::StartHandler<ControlHandler>(parts_, runner_, context, request, response);
  }

 private:
  const WorkerParts parts_;
  ControlRunner* const runner_;
};

}  // namespace lockstep::worker
