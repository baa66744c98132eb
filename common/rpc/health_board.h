#pragma once

#include <functional>

#include "common/base/mutex.h"
#include "grpcpp/health_check_service_interface.h"

namespace lockstep::rpc {

// The three health names of a process, as grpc.health.v1 answers them:
//   live     own loops make progress; never depends on a peer
//   started  start-up is over
//   ready    work can be taken now; false while draining. The empty name answers the same
// A server begins live, not started, not ready. Thread-safe.
class HealthBoard {
 public:
  // `service` is gRPC's and outlives the board; null only where no server runs (tests of cores).
  // `on_ready` is told of `ready` whenever a name is set, in order, and must not call the board.
  explicit HealthBoard(grpc::HealthCheckServiceInterface* service,
                       std::function<void(bool ready)> on_ready = nullptr);

  void SetLive(bool live);
  void SetStarted(bool started);
  void SetReady(bool ready);
  // For good: not ready now, and later SetReady(true) does nothing.
  void BeginDrain();

  bool live() const;
  bool started() const;
  bool ready() const;

 private:
  void PublishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::HealthCheckServiceInterface* const service_;
  const std::function<void(bool ready)> on_ready_;
  mutable base::Mutex mutex_;
  bool live_ ABSL_GUARDED_BY(mutex_) = true;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::rpc
