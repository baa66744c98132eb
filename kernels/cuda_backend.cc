#include "kernels/cuda_backend.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cuda/backend/certified_layers.h"
#include "kernels/cuda/backend/cuda_kernel_set.h"
#include "kernels/cuda/collective/peer_group.h"

namespace lockstep::kernels {
absl::StatusOr<std::unique_ptr<KernelSet>> CreateCudaBackend(const BackendOptions& options) {
  return cuda::CreateCudaKernelSet({.certificates_path = options.certificates_path,
                                    .normal = options.normal,
                                    .shadows = options.shadows,
                                    .audit = options.audit,
                                    .portable_kernels = options.portable_kernels,
                                    .collective = options.collective});
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreateCudaGroup(int ranks,
                                                                 absl::Duration patience) {
  std::vector<int> devices(static_cast<size_t>(std::max(0, ranks)));
  std::iota(devices.begin(), devices.end(), 0);
  return cuda::CreatePeerGroup(std::move(devices), patience);
}

absl::StatusOr<CertificationReport> CertifyCudaBackend(const BackendOptions& options,
                                                       std::span<const LinearLayer> layers) {
  return cuda::ReportCertificates(layers, options.certificates_path);
}

}  // namespace lockstep::kernels
