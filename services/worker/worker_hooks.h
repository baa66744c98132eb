#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace lockstep::kernels {
class KernelSet;
}  // namespace lockstep::kernels

namespace lockstep::worker {

class StepExecutor;

// A seam for tests: puts a decorator around what computes, before anything uses it. Tests plant
// faults there, to show that those who look for such faults find them. A worker that serves is
// started without hooks. `wrap_kernels` is called for each rank, on its thread. An empty function
// leaves its part as it is; the null model has no kernels.
struct WorkerHooks {
  std::function<std::unique_ptr<kernels::KernelSet>(std::unique_ptr<kernels::KernelSet>)>
      wrap_kernels;
  std::function<std::unique_ptr<StepExecutor>(std::unique_ptr<StepExecutor>)> wrap_executor;
  absl::Duration rank_patience;  // How long ranks wait for each other; 0 is the backend's own.
  absl::Duration hang_patience;  // How long the engine may stand still; 0 is the worker's own.
};

}  // namespace lockstep::worker
