#pragma once

#include "absl/time/time.h"
#include "common/rpc/handler.h"
#include "lockstep/v1/worker.pb.h"
#include "services/worker/control_runner.h"
#include "services/worker/run_handler.h"

namespace lockstep::worker {

// The scheduler's orders: epochs, abort, hold, cache.
class ControlHandler final : public rpc::UnaryHandler<v1::ControlRequest, v1::ControlResponse> {
 public:
  ControlHandler(const WorkerParts& parts, ControlRunner* runner,
                 grpc::CallbackServerContext* context, const v1::ControlRequest* request,
                 v1::ControlResponse* response)
      : UnaryHandler(context, request, response), parts_(parts), runner_(runner) {}

 private:
  void Start() override;

  const WorkerParts parts_;
  ControlRunner* const runner_;
};

// What a control request does to a worker. Blocks until the engine loop has done it, or until
// `deadline`: DEADLINE_EXCEEDED then.
absl::StatusOr<v1::ControlResponse> ExecuteControl(const v1::ControlRequest& request,
                                                   absl::Time deadline, const WorkerParts& parts);

}  // namespace lockstep::worker
