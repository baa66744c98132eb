#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/scheduler/control_round.h"
#include "services/scheduler/decisions.h"

namespace lockstep::scheduler {

// How the scheduler reaches workers. Commands to one worker arrive in the order of the calls.
class WorkerControl {
 public:
  using Done = std::function<void(absl::StatusOr<ControlReply>)>;
  virtual ~WorkerControl() = default;
  // Does not block. `done` runs exactly once, never inside this call, with the worker's answer, or
  // with the error of a call that took longer than `timeout`.
  virtual void Call(const ControlCall& call, absl::Duration timeout, Done done) = 0;
  // The worker at `address` is gone; calls under way end by themselves.
  virtual void Forget(const std::string& address) = 0;
};

}  // namespace lockstep::scheduler
