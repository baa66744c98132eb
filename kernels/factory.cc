#include "kernels/factory.h"

#include "absl/strings/str_cat.h"
#include "kernels/collective/in_process_group.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda_backend.h"

namespace lockstep::kernels {
namespace {

constexpr int kCpuSplitKvSize = 256;
// For the slowest rank of a step: seconds for the largest model on a busy machine.
constexpr absl::Duration kCpuRankPatience = absl::Seconds(30);
// Ranks of a step are launched together; who is this late is stuck.
constexpr absl::Duration kCudaRankPatience = absl::Seconds(2);

absl::Status UnknownBackend(const std::string& backend) {
  return absl::InvalidArgumentError(
      absl::StrCat("unknown kernel backend \"", backend, "\"; known: cpu, cuda"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelSet>> CreateKernelSet(const BackendOptions& options) {
  if (options.backend == "cpu" && options.normal) {
    return absl::InvalidArgumentError(
        "normal mode: the CPU backend has no kernels but the deterministic ones");
  }
  if (options.backend == "cpu" && options.shadows) {
    return absl::InvalidArgumentError(
        "shadows: the CPU backend has no normal mode to compare with");
  }
  if (options.backend == "cpu") {
    return cpu::CreateCpuKernelSet({.threads = options.threads, .collective = options.collective});
  }
  if (options.backend == "cuda") return CreateCudaBackend(options);
  return UnknownBackend(options.backend);
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreateCollectiveGroup(const std::string& backend,
                                                                       int ranks,
                                                                       absl::Duration patience) {
  const bool own = patience == absl::ZeroDuration();
  if (backend == "cpu") return CreateInProcessGroup(ranks, own ? kCpuRankPatience : patience);
  if (backend == "cuda") return CreateCudaGroup(ranks, own ? kCudaRankPatience : patience);
  return UnknownBackend(backend);
}

absl::StatusOr<int> DefaultSplitKvSize(const std::string& backend) {
  if (backend == "cpu") return kCpuSplitKvSize;
  if (backend == "cuda") return cuda::kSplitKvSize;
  return UnknownBackend(backend);
}

absl::StatusOr<CertificationReport> Certify(const BackendOptions& options,
                                            std::span<const LinearLayer> layers) {
  if (options.backend == "cpu") {
    return CertificationReport{.environment = "CPU: one kernel for each op, nothing to certify"};
  }
  if (options.backend == "cuda") return CertifyCudaBackend(options, layers);
  return UnknownBackend(options.backend);
}

}  // namespace lockstep::kernels
