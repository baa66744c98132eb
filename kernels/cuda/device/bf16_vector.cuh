#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/primitive/mma.cuh"

// bf16 values in 16-byte and 8-byte vectors, widened to fp32 and rounded back.
namespace lockstep::kernels::cuda {

__device__ __forceinline__ void Widen(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xFFFF0000u);
}

// RNbf16, as fp32.
__device__ __forceinline__ float RoundedToBf16(float x) {
  return __uint_as_float(PackBf16(x, 0.0f) << 16);
}

__device__ __forceinline__ void Widen8(const uint4& v, float* x) {
  Widen(v.x, x[0], x[1]);
  Widen(v.y, x[2], x[3]);
  Widen(v.z, x[4], x[5]);
  Widen(v.w, x[6], x[7]);
}

__device__ __forceinline__ uint4 Pack8(const float* x) {
  return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7])};
}

// 8 neighbouring fp32 values that no kernel writes.
__device__ __forceinline__ void Load8(const float* from, float* x) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(from));
  const float4 high = __ldg(reinterpret_cast<const float4*>(from) + 1);
  const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = values[i];
}

__device__ __forceinline__ void Widen4(const uint2& v, float* x) {
  Widen(v.x, x[0], x[1]);
  Widen(v.y, x[2], x[3]);
}

__device__ __forceinline__ uint2 Pack4(const float* x) {
  return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3])};
}

}  // namespace lockstep::kernels::cuda
