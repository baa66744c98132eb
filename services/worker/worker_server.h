#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/worker/worker_hooks.h"
#include "services/worker/worker_options.h"

namespace lockstep::worker {

// One worker: model, engine, RPC server and its registration, in the order in which they start.
class WorkerServer {
 public:
  // Loads the model, starts the engine and serves; registration goes on in the background, and the
  // health name `ready` tells when it succeeded.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(WorkerOptions options,
                                                             const WorkerHooks& hooks = {});
  ~WorkerServer();

  int port() const;
  // Not ready; what runs may finish for `drain_finish`, then it is handed to other workers, or goes
  // on until `deadline` when there are none. Returns when nothing runs, or soon after `deadline`.
  void Drain(absl::Time deadline);
  // Why the engine stopped by itself, or hangs; OK while it works. Otherwise the process should end
  // without destroying this object, which would wait for threads that may never end.
  absl::Status health() const;
  // Tells the scheduler that the process ends and why, which health() says: others take over at
  // once instead of when the lease has run out, and operators learn of wrong bits. Returns within
  // half a second.
  void LeaveFailed();

 private:
  class Impl;
  explicit WorkerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::worker
