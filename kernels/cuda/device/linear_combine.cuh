#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/linear_kernels.h"

// What follows the products of a row-parallel layer: T over the segments, bias, one rounding, then
// the residual with another. The arithmetic is here for kernels that do it on the way to something
// else. Placement-invariant.
namespace lockstep::kernels::cuda {

// T of kSegments values, in place.
template <int kSegments>
__device__ __forceinline__ float TreeOfSegments(float (&v)[kSegments]) {
#pragma unroll
  for (int width = kSegments; width > 1; width /= 2) {
#pragma unroll
    for (int i = 0; i < width / 2; ++i) v[i] = __fadd_rn(v[2 * i], v[2 * i + 1]);
  }
  return v[0];
}

__device__ __forceinline__ float RoundToBf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

struct LinearCombineParameters {
  const void* partials;
  const uint16_t* bias;
  uint16_t* y;
  size_t partial_stride;
  size_t y_stride;
  int rows;
  int outputs;
  bool accumulate;
};

struct alignas(8) FourBf16 {
  __nv_bfloat162 low;
  __nv_bfloat162 high;
};

__device__ __forceinline__ void Widen(const FourBf16& four, float (&values)[4]) {
  values[0] = __low2float(four.low);
  values[1] = __high2float(four.low);
  values[2] = __low2float(four.high);
  values[3] = __high2float(four.high);
}

// Four neighbouring outputs of a row, [kSegments] partial sums each; kSegments = 1 reads bf16.
template <int kSegments>
__device__ __forceinline__ void CombineFour(const LinearCombineParameters& p, size_t from, int o,
                                            float (&values)[4]) {
  if constexpr (kSegments == 1) {
    Widen(*reinterpret_cast<const FourBf16*>(static_cast<const uint16_t*>(p.partials) + from),
          values);
  } else {
    float4 parts[kSegments];
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      parts[s] = *reinterpret_cast<const float4*>(static_cast<const float*>(p.partials) +
                                                  static_cast<size_t>(s) * p.partial_stride + from);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v[kSegments];
#pragma unroll
      for (int s = 0; s < kSegments; ++s) v[s] = (&parts[s].x)[i];
      values[i] = TreeOfSegments(v);
    }
    if (p.bias != nullptr) {
      float bias[4];
      Widen(*reinterpret_cast<const FourBf16*>(p.bias + o), bias);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = __fadd_rn(values[i], bias[i]);
    }
  }
}

template <int kSegments>
__global__ void LinearCombineKernel(LinearCombineParameters p) {
  const size_t fours = static_cast<size_t>(p.outputs) / 4;
  const size_t count = static_cast<size_t>(p.rows) * fours;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const size_t row = i / fours;
    const int o = static_cast<int>(i % fours) * 4;
    float values[4];
    CombineFour<kSegments>(p, row * p.outputs + o, o, values);
    FourBf16* to = reinterpret_cast<FourBf16*>(p.y + row * p.y_stride + o);
    if (p.accumulate) {
      float residual[4];
      Widen(*to, residual);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = __fadd_rn(residual[j], RoundToBf16(values[j]));
    }
    *to = {__floats2bfloat162_rn(values[0], values[1]),
           __floats2bfloat162_rn(values[2], values[3])};
  }
}

}  // namespace lockstep::kernels::cuda
