#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/collective.h"
#include "kernels/api/kernel_set.h"

namespace lockstep::kernels::cpu {

struct CpuOptions {
  int threads = 1;  // The caller's and threads - 1 of the backend's own; 0 is one per core.
  // This rank's end, for layers that ranks share. Null without other ranks.
  std::shared_ptr<Collective> collective;
};

// The CPU backend: fp32 activations and KV, weights as stored, ops that have finished when they
// return. Any instruction set and any number of threads gives the same bits; AVX2 with FMA or
// better is needed for speed, not for the bits. INVALID_ARGUMENT for negative threads.
absl::StatusOr<std::unique_ptr<KernelSet>> CreateCpuKernelSet(const CpuOptions& options);

}  // namespace lockstep::kernels::cpu
