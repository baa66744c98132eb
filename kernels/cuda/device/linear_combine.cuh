#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"
#include "kernels/cuda/device/row_tree.cuh"
#include "kernels/cuda/linear/linear_kernels.h"

// What follows the products of a row-parallel layer: T over the segments, bias, one rounding, then
// the residual with another. The arithmetic is here for kernels that do it on the way to something
// else. Placement-invariant.
namespace lockstep::kernels::cuda {

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

// Four neighbouring outputs of a row, [kSegments] partial sums each; kSegments = 1 reads bf16.
template <int kSegments>
__device__ __forceinline__ void CombineFour(const LinearCombineParameters& p, size_t from, int o,
                                            float (&values)[4]) {
  if constexpr (kSegments == 1) {
    Widen4(*reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.partials) + from),
           values);
  } else {
    const float* const first = static_cast<const float*>(p.partials) + from;
    TreeOfSegments<kSegments>([&](size_t s) { return first + s * p.partial_stride; }, values);
    if (p.bias != nullptr) {
      float bias[4];
      Widen4(*reinterpret_cast<const uint2*>(p.bias + o), bias);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = __fadd_rn(values[i], bias[i]);
    }
  }
}

template <int kSegments>
__global__ void LinearCombineKernel(LinearCombineParameters p) {
  WaitForKernels();
  AllowNextKernel();
  const size_t fours = static_cast<size_t>(p.outputs) / 4;
  const size_t count = static_cast<size_t>(p.rows) * fours;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const size_t row = i / fours;
    const int o = static_cast<int>(i % fours) * 4;
    float values[4];
    CombineFour<kSegments>(p, row * p.outputs + o, o, values);
    uint2* to = reinterpret_cast<uint2*>(p.y + row * p.y_stride + o);
    if (p.accumulate) {
      float residual[4];
      Widen4(*to, residual);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = __fadd_rn(residual[j], RoundedToBf16(values[j]));
    }
    *to = Pack4(values);
  }
}

}  // namespace lockstep::kernels::cuda
