#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "common/log/outage_log.h"
#include "common/log/rate_limit.h"
#include "lockstep/v1/scheduler.grpc.pb.h"
#include "services/worker/engine/engine_loop.h"
#include "services/worker/lease_fence.h"
#include "services/worker/step_report.h"

namespace lockstep::worker {

// Keeps this worker registered: registers, renews the lease with the engine's progress and what the
// steps reported, and starts a new life when the lease was lost. One thread, "scheduler-link",
// which also ticks the fence. A scheduler that cannot be reached ends nothing here.
class SchedulerLink {
 public:
  struct Deps {
    std::unique_ptr<v1::SchedulerService::StubInterface> stub;
    LeaseFence* fence = nullptr;
    StepReport* report = nullptr;
    EngineLoop* engine = nullptr;
    const base::Clock* clock = nullptr;
    log::Logger logger;
    // This life has ended: every stream must close, and whatever runs must end, as soon as the
    // engine can do that. Must not wait for it: this thread also watches the engine.
    std::function<void()> on_lease_lost;
    // A registration succeeded: a first one, or one after a lost lease or a restarted scheduler.
    std::function<void()> on_registered;
    // What the engine does, before each heartbeat and each attempt to register.
    std::function<void(const EngineSnapshot&)> on_snapshot;
  };
  // `registration` has everything but incarnation and held tickets.
  SchedulerLink(v1::RegisterRequest registration, Deps deps);
  ~SchedulerLink();

  // Tells the scheduler that this worker drains; true when another one can take its sequences.
  absl::StatusOr<bool> AnnounceDrain(absl::Duration timeout);
  // Gives the lease back; afterwards nothing is renewed.
  void LeaveForGood(absl::Duration timeout);
  // The same for a worker whose process ends now: waits for no thread.
  void LeaveAtOnce(v1::WorkerFault fault, absl::Duration timeout);

 private:
  void Run();
  // Does what is due, and returns the pause until the next time.
  absl::Duration RenewOnce();
  void RegisterOnce(const EngineSnapshot& snapshot);
  void HeartbeatOnce(const EngineSnapshot& snapshot);
  void HandleHeartbeatError(const absl::Status& status);
  // Ends this life and draws the next one.
  void LoseLease(const absl::Status& reason);
  // A scheduler that has restarted does not know that this worker drains.
  void AnnounceAgain();
  absl::Status Leave(bool drain, v1::WorkerFault fault, absl::Duration timeout,
                     bool* others_available);
  // Waits for the pause between two heartbeats, ticking the fence; false when stopping.
  bool Pause(absl::Duration pause);
  bool stopping() const;

  v1::RegisterRequest registration_;
  Deps deps_;
  log::OutageLog outage_;
  log::RateLimit refusal_log_;  // A worker that is refused asks again each second.
  base::Incarnation incarnation_;
  bool registered_ = false;
  bool alive_ = false;  // This life was registered and is not lost; the scheduler may be away.
  std::atomic<bool> draining_ = false;
  absl::Duration lease_ = absl::Seconds(3);
  absl::Duration backoff_;

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::worker
