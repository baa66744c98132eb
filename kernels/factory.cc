#include "kernels/factory.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "kernels/cuda_backend.h"

namespace lockstep::kernels {

absl::StatusOr<std::unique_ptr<KernelSet>> CreateKernelSet(const BackendOptions& options) {
  if (options.backend == "cpu") return cpu::CreateCpuKernelSet({.threads = options.threads});
  if (options.backend == "cuda") return CreateCudaBackend(options);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown kernel backend \"", options.backend, "\"; known: cpu, cuda"));
}

}  // namespace lockstep::kernels
