#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"

namespace lockstep::kernels {

struct BackendOptions {
  std::string backend = "cpu";  // "cpu" or "cuda".
  int threads = 1;              // Of the CPU backend; 0 is one per core.
  // Of the CUDA backend: a file of certificates of linear layers; empty keeps none, and every start
  // certifies.
  std::string certificates_path;
};

// Makes the ops of one rank. FAILED_PRECONDITION when this binary was built without the backend,
// INVALID_ARGUMENT for an unknown one.
absl::StatusOr<std::unique_ptr<KernelSet>> CreateKernelSet(const BackendOptions& options);

}  // namespace lockstep::kernels
