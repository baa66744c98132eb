#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/kernel_path.h"

namespace lockstep::kernels::cuda {

// UNAVAILABLE without such a device.
absl::StatusOr<cudaDeviceProp> PropertiesOf(int device);

// The kernels for a GPU, by its compute capability: Hopper's own on 9.0, the portable ones on every
// other from 8.0 on. FAILED_PRECONDITION names a GPU that is older.
absl::StatusOr<KernelPath> KernelPathOf(const std::string& gpu, int major, int minor);

}  // namespace lockstep::kernels::cuda
