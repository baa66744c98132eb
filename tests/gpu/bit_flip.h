#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::testing {

// Turns one bit of device memory over: the smallest fault there is.
cudaError_t FlipBit(void* memory, size_t bit, cudaStream_t stream);

}  // namespace lockstep::testing
