#include "absl/status/status.h"
#include "kernels/cuda_backend.h"

namespace lockstep::kernels {

absl::StatusOr<std::unique_ptr<KernelSet>> CreateCudaBackend(const BackendOptions& /*options*/) {
  return absl::FailedPreconditionError("backend \"cuda\" is not part of this build; use \"cpu\"");
}

}  // namespace lockstep::kernels
