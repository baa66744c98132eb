#include "kernels/cuda_backend.h"

#include "kernels/cuda/backend/certified_layers.h"
#include "kernels/cuda/backend/cuda_kernel_set.h"

namespace lockstep::kernels {

absl::StatusOr<std::unique_ptr<KernelSet>> CreateCudaBackend(const BackendOptions& options) {
  return cuda::CreateCudaKernelSet({.certificates_path = options.certificates_path,
                                    .normal = options.normal,
                                    .audit = options.audit,
                                    .portable_kernels = options.portable_kernels});
}

absl::StatusOr<CertificationReport> CertifyCudaBackend(const BackendOptions& options,
                                                       std::span<const LinearLayer> layers) {
  return cuda::ReportCertificates(layers, options.certificates_path);
}

}  // namespace lockstep::kernels
