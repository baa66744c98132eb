#pragma once

#include <deque>
#include <vector>

#include "common/base/clock.h"
#include "common/rpc/handler.h"
#include "lockstep/v1/worker.pb.h"
#include "services/worker/engine/engine_loop.h"
#include "services/worker/lease_fence.h"
#include "services/worker/stream_table.h"

namespace lockstep::worker {

// What the handlers of a worker share. Everything outlives the server.
struct WorkerParts {
  LeaseFence* fence = nullptr;
  EngineLoop* engine = nullptr;
  StreamTable* streams = nullptr;
  const base::Clock* clock = nullptr;
};

// One router's stream of sequences. Frames that the transport cannot take yet wait here; credit
// bounds how many there can be. When the router goes, its sequences end: it will ask again, here or
// elsewhere.
class RunHandler final : public rpc::BidiHandler<v1::WorkerCommand, v1::WorkerFrame>,
                         public FrameStream {
 public:
  RunHandler(const WorkerParts& parts, grpc::CallbackServerContext* context)
      : BidiHandler(context), parts_(parts) {}

  void SendFrame(v1::WorkerFrame frame) override;
  void Close(absl::Status status) override { Abort(std::move(status)); }

 private:
  void Start() override { RequestRead(); }
  void OnMessage(v1::WorkerCommand& command) override;
  void OnHalfClose() override;
  void OnCancelled() override { DropSequences(); }
  void OnOutboxDrained() override;

  void StartSequences(const v1::WorkerCommand& command);
  void DropSequences();

  const WorkerParts parts_;
  base::Mutex pending_mutex_;
  std::deque<v1::WorkerFrame> pending_ ABSL_GUARDED_BY(pending_mutex_);
};

}  // namespace lockstep::worker
