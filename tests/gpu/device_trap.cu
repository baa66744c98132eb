#include "tests/gpu/device_trap.h"

#include <cuda_runtime.h>

namespace lockstep::testing {
namespace {

__global__ void TrapKernel() { __trap(); }

}  // namespace

cudaError_t TrapDevice() {
  TrapKernel<<<1, 1>>>();
  return cudaGetLastError();
}

}  // namespace lockstep::testing
