#include "tests/gpu/bit_flip.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::testing {
namespace {

__global__ void FlipBitKernel(uint8_t* byte, int bit) { *byte ^= static_cast<uint8_t>(1 << bit); }

}  // namespace

cudaError_t FlipBit(void* memory, size_t bit, cudaStream_t stream) {
  FlipBitKernel<<<1, 1, 0, stream>>>(static_cast<uint8_t*>(memory) + bit / 8,
                                     static_cast<int>(bit % 8));
  return cudaGetLastError();
}

}  // namespace lockstep::testing
