#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/factory.h"

namespace lockstep::kernels {

// The CUDA backend of this build, for the factory. FAILED_PRECONDITION when it has none.
absl::StatusOr<std::unique_ptr<KernelSet>> CreateCudaBackend(const BackendOptions& options);

// Its part of CreateCollectiveGroup: rank r on the r-th device that the process sees.
absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreateCudaGroup(int ranks,
                                                                 absl::Duration patience);

// Its part of Certify; the same error.
absl::StatusOr<CertificationReport> CertifyCudaBackend(const BackendOptions& options,
                                                       std::span<const LinearLayer> layers);

}  // namespace lockstep::kernels
