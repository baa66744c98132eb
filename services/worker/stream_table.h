#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "lockstep/v1/worker.pb.h"
#include "services/worker/engine/sequence_start.h"
#include "services/worker/engine/step_output.h"
#include "services/worker/lease_fence.h"
#include "services/worker/step_report.h"

namespace lockstep::worker {

// A router's stream, as far as results are concerned. Thread-safe; must not block.
class FrameStream {
 public:
  virtual ~FrameStream() = default;
  virtual void SendFrame(v1::WorkerFrame frame) = 0;
  // Ends the stream: this life of the worker is over.
  virtual void Close(absl::Status status) = 0;
};

// Which stream waits for which ticket. Turns the results of a step into one frame a stream, unless
// the fence is closed: then nothing leaves. Thread-safe.
class StreamTable {
 public:
  StreamTable(LeaseFence* fence, StepReport* report, std::string weights_digest,
              log::Logger logger);

  // Before the sequence starts, so that its first result finds its stream. False when the ticket is
  // bound already.
  bool Bind(const SequenceStart& start, std::weak_ptr<FrameStream> stream);
  // The start was refused.
  void Unbind(base::TicketId ticket, const absl::Status& why);
  // The stream is gone; returns its tickets, which nobody waits for any longer.
  std::vector<base::TicketId> Drop(const FrameStream* stream);
  // The step hook of the engine.
  void Deliver(StepOutput output);
  // Closes every stream.
  void CloseAll(const absl::Status& status);

 private:
  struct Entry {
    std::weak_ptr<FrameStream> stream;
    const FrameStream* key;
    base::SequenceId sequence;
    log::Logger logger;  // Of its request.
  };
  using Frames = absl::flat_hash_map<std::shared_ptr<FrameStream>, v1::WorkerFrame>;
  v1::WorkerFrame* FrameFor(base::TicketId ticket, Frames* frames)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogEnd(base::TicketId ticket, const SequenceEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LeaseFence* const fence_;
  StepReport* const report_;
  const std::string weights_digest_;
  const log::Logger logger_;
  base::Mutex mutex_;
  absl::flat_hash_map<base::TicketId, Entry> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::worker
