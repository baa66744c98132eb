#include "absl/status/status.h"
#include "kernels/cuda_backend.h"

namespace lockstep::kernels {
namespace {

absl::Status NotInThisBuild() {
  return absl::FailedPreconditionError("backend \"cuda\" is not part of this build; use \"cpu\"");
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelSet>> CreateCudaBackend(const BackendOptions& /*options*/) {
  return NotInThisBuild();
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreateCudaGroup(int /*ranks*/,
                                                                 absl::Duration /*patience*/) {
  return NotInThisBuild();
}

absl::StatusOr<CertificationReport> CertifyCudaBackend(const BackendOptions& /*options*/,
                                                       std::span<const LinearLayer> /*layers*/) {
  return NotInThisBuild();
}

}  // namespace lockstep::kernels
