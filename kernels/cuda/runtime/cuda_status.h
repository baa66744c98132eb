#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::kernels::cuda {

// Memory that is missing is RESOURCE_EXHAUSTED, arguments that an op does not support are
// INVALID_ARGUMENT, everything else ends the device's use: UNAVAILABLE.
inline absl::Status StatusOfCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorInvalidValue:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace lockstep::kernels::cuda
