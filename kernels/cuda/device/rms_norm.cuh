#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"
#include "kernels/cuda/device/row_tree.cuh"

// RMSNorm of bf16 rows, one CTA a row, 8 * kVectors neighbouring elements a thread. t = T(x * x)
// over the width: in the thread, then lanes from 1 upward, then warps; r = 1 / sqrt(t * RN(1 / N) +
// epsilon), each step rounded, division and root IEEE; y = RNbf16(w * RNbf16(x * r)).
// Placement-invariant.
namespace lockstep::kernels::cuda {

// 1 / root of the mean square.
__device__ __forceinline__ float InverseRootMean(float squares, float inverse_width,
                                                 float epsilon) {
  return __fdiv_rn(1.0f, __fsqrt_rn(squares * inverse_width + epsilon));
}

// The norm of a row of which each thread of the CTA holds kCount neighbouring elements, zeros
// behind the width; x becomes y, not yet rounded. `warp_sums` as of TreeOfCta.
template <int kCount>
__device__ __forceinline__ void NormaliseRow(float (&x)[kCount], const float (&weight)[kCount],
                                             float inverse_width, float epsilon, float* warp_sums) {
  float squares[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) squares[i] = x[i] * x[i];
  const float r =
      InverseRootMean(TreeOfCta(TreeOfThread(squares), warp_sums), inverse_width, epsilon);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = weight[i] * RoundedToBf16(x[i] * r);
}

struct NormParameters {
  const float* weight;
  const uint16_t* x;
  uint16_t* y;
  size_t x_stride;
  size_t y_stride;
  int width;
  float inverse_width;
  float epsilon;
  // Of the fused residual connection: x is then read and written.
  uint16_t* residual;
  const void* update;  // bf16, or fp32 partial sums of segments.
  size_t partial_stride;
  const uint16_t* bias;
};

// T over the segments of 8 neighbouring sums, plus bias, rounded to bf16.
template <int kSegments>
__device__ __forceinline__ void LoadUpdate(const NormParameters& p, size_t at, int column,
                                           float* u) {
  if constexpr (kSegments == 1) {
    Widen8(*reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.update) + at), u);
    return;
  }
  const float* const partials = static_cast<const float*>(p.update) + at;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    TreeOfSegments<kSegments>([&](size_t s) { return partials + s * p.partial_stride + 4 * half; },
                              u + 4 * half);
  }
  if (p.bias != nullptr) {
    float bias[8];
    Widen8(__ldg(reinterpret_cast<const uint4*>(p.bias + column)), bias);
#pragma unroll
    for (int i = 0; i < 8; ++i) u[i] = u[i] + bias[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) u[i] = RoundedToBf16(u[i]);
}

// kSegments = 0 is the norm alone.
template <int kVectors, int kSegments>
__global__ void __launch_bounds__(1024) RmsNormKernel(const __grid_constant__ NormParameters p) {
  __shared__ float warp_sums[32];
  const size_t row = blockIdx.x;
  const int first = static_cast<int>(threadIdx.x) * kVectors * 8;
  float x[kVectors * 8];
  float weight[kVectors * 8] = {};
  // Nothing that runs before writes the weights.
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + 8 * v < p.width) Load8(p.weight + first + 8 * v, weight + 8 * v);
  }
  WaitForKernels();
  AllowNextKernel();
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first + 8 * v;
    float* const values = x + 8 * v;
    if (column >= p.width) {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = 0;
      continue;
    }
    if constexpr (kSegments == 0) {
      Widen8(*reinterpret_cast<const uint4*>(p.x + row * p.x_stride + column), values);
    } else {
      uint4* const residual = reinterpret_cast<uint4*>(p.residual + row * p.x_stride + column);
      Widen8(*residual, values);
      float update[8];
      LoadUpdate<kSegments>(p, row * p.width + column, column, update);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = RoundedToBf16(values[i] + update[i]);
      *residual = Pack8(values);
    }
  }
  NormaliseRow(x, weight, p.inverse_width, p.epsilon, warp_sums);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first + 8 * v;
    if (column >= p.width) continue;
    *reinterpret_cast<uint4*>(p.y + row * p.y_stride + column) = Pack8(x + 8 * v);
  }
}

}  // namespace lockstep::kernels::cuda
