#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/kernel_node.h"
#include "kernels/cuda/runtime/event.h"

namespace lockstep::kernels::cuda {

// Work that is timed as it will run: in a graph, so that launches cost no host time. Several turns
// of it in a row, which may use different memory, so that no cache helps. Not thread-safe.
class TimedGraph {
 public:
  // Enqueues one turn.
  using Turn = std::function<absl::Status(int turn, cudaStream_t stream)>;

  // Captures `turns` turns. `stream` outlives the result and is otherwise idle.
  static absl::StatusOr<TimedGraph> Capture(int turns, const Turn& turn, cudaStream_t stream);

  // Runs it once, and waits: mean microseconds of a turn.
  absl::StatusOr<double> Replay();

  const std::vector<KernelNode>& kernels() const { return kernels_; }

 private:
  struct ExecDeleter {
    void operator()(cudaGraphExec_t exec) const { cudaGraphExecDestroy(exec); }
  };

  TimedGraph() = default;

  int turns_ = 0;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CUgraphExec_st, ExecDeleter> exec_;
  Event begin_;
  Event end_;
  std::vector<KernelNode> kernels_;
};

}  // namespace lockstep::kernels::cuda
