#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"
#include "kernels/cuda/linear/kernel_node.h"
#include "kernels/cuda/linear/linear_audit.h"

namespace lockstep::kernels::cuda {

// A captured graph, ready to be launched. Belongs to the device that was current.
class CapturedGraph final : public CapturedOps {
  struct Private {};

 public:
  // Captures what `enqueue` puts on `stream`. It may not synchronise or allocate.
  static absl::StatusOr<std::unique_ptr<CapturedGraph>> Create(
      cudaStream_t stream, const std::function<void()>& enqueue);

  const std::vector<KernelNode>& kernels() const { return kernels_; }
  cudaError_t Launch(cudaStream_t stream) const;

  // The call that is copied for the audit in every launch.
  void set_audited(std::optional<AuditedCall> call) { audited_ = call; }
  const std::optional<AuditedCall>& audited() const { return audited_; }

  // For Create.
  explicit CapturedGraph(Private) {}

 private:
  struct ExecDeleter {
    void operator()(cudaGraphExec_t exec) const { cudaGraphExecDestroy(exec); }
  };

  std::unique_ptr<CUgraphExec_st, ExecDeleter> exec_;
  std::vector<KernelNode> kernels_;
  std::optional<AuditedCall> audited_;
};

}  // namespace lockstep::kernels::cuda
