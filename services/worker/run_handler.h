#pragma once

#include <utility>

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

// One router's stream of sequences. Credit bounds the frames that wait for the transport. When the
// router goes, its sequences end: it will ask again, here or elsewhere.
class RunHandler final : public rpc::BidiHandler<v1::WorkerCommand, v1::WorkerFrame>,
                         public FrameStream {
 public:
  RunHandler(const WorkerParts& parts, grpc::CallbackServerContext* context)
      : BidiHandler(context, rpc::kBoundedByCredit), parts_(parts) {}

  // A frame for a stream that has ended is of no use to anybody.
  void SendFrame(v1::WorkerFrame frame) override { (void)Write(std::move(frame)); }
  void Close(absl::Status status) override { Abort(std::move(status)); }

 private:
  void Start() override { RequestRead(); }
  void OnMessage(v1::WorkerCommand& command) override;
  void OnHalfClose() override;
  void OnCancelled() override { DropSequences(); }
  // A message may have been on its way while the client was found to be gone.
  void OnClosed(const absl::Status&) override { DropSequences(); }

  // The start as the engine takes it, or why this worker refuses the ticket.
  absl::StatusOr<SequenceStart> CheckStart(const v1::WorkerStart& message) const;
  void StartSequences(const v1::WorkerCommand& command);
  void DropSequences();

  const WorkerParts parts_;
};

}  // namespace lockstep::worker
