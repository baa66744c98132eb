#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/api/draw.h"

// Weights drawn as kernels/api/draw.h defines them: each element by itself, placement-invariant.
namespace lockstep::kernels::cuda {

// DrawnInteger of that file.
__device__ __forceinline__ int DrawnIntegerOnDevice(uint64_t key, uint64_t index) {
  uint64_t x = key + index * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  const uint32_t low = static_cast<uint32_t>(x);
  const uint32_t high = static_cast<uint32_t>(x >> 32);
  return static_cast<int>((low & 0xffff) + (low >> 16) + (high & 0xffff) + (high >> 16)) -
         2 * 0xffff;
}

static __global__ void DrawKernel(DrawArgs args) {
  __nv_bfloat16* const values = static_cast<__nv_bfloat16*>(args.values);
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count;
       i += step) {
    const float drawn = static_cast<float>(DrawnIntegerOnDevice(args.key, i));
    values[i] = __float2bfloat16_rn(__fadd_rn(__fmul_rn(drawn, args.unit), args.mean));
  }
}

}  // namespace lockstep::kernels::cuda
