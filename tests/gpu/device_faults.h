#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// What befalls the current device. Both return whether a kernel was started, and start it beside
// whatever else runs.
namespace lockstep::testing {

// A kernel that traps: from then on every call of this process on the device fails, as after an
// error of the device itself.
cudaError_t TrapDevice();

// A kernel that holds every multiprocessor for so long: the kernels of other streams end, and none
// starts.
cudaError_t StallDevice(uint64_t nanoseconds);

}  // namespace lockstep::testing
