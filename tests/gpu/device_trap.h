#pragma once

#include <cuda_runtime_api.h>

namespace lockstep::testing {

// Starts a kernel that traps on the current device. From then on every call of this process on the
// device fails, as after an error of the device itself. Returns whether the kernel was started.
cudaError_t TrapDevice();

}  // namespace lockstep::testing
