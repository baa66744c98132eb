#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/linear_product.cuh"
#include "kernels/cuda/device/primitive/mma.cuh"

// A linear layer written down as the contract says it: one warp a tile of 16 rows and 64 outputs,
// plain loads, groups of 16 inputs in ascending order from zero. Placement-invariant.
namespace lockstep::kernels::cuda {

inline constexpr int kReferenceRows = 16;
inline constexpr int kReferenceTiles = 8;  // Of 8 outputs.

__device__ __forceinline__ float WidenBf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// Two neighbouring elements of a row, or zeros where there is no such row.
__device__ __forceinline__ uint32_t PairOrZero(const uint16_t* row, int at, bool exists) {
  return exists ? *reinterpret_cast<const uint32_t*>(row + at) : 0;
}

static __global__ void LinearReferenceKernel(LinearProductParameters p) {
  const int lane = static_cast<int>(threadIdx.x);
  const int segment = static_cast<int>(blockIdx.z);
  const int output = static_cast<int>(blockIdx.x) * kReferenceTiles * 8;
  const int row = static_cast<int>(blockIdx.y) * kReferenceRows + lane / 4;
  const uint16_t* top = p.x + static_cast<size_t>(row) * p.x_stride;
  const uint16_t* bottom = top + 8 * p.x_stride;
  float sums[kReferenceTiles][4] = {};
  const int begin = segment * p.length;
  for (int k = begin; k < begin + p.length; k += 16) {
    const int at = k + lane % 4 * 2;
    const uint32_t a[4] = {
        PairOrZero(top, at, row < p.rows), PairOrZero(bottom, at, row + 8 < p.rows),
        PairOrZero(top, at + 8, row < p.rows), PairOrZero(bottom, at + 8, row + 8 < p.rows)};
#pragma unroll
    for (int tile = 0; tile < kReferenceTiles; ++tile) {
      const int o = output + tile * 8 + lane / 4;
      const uint16_t* w = p.weight + static_cast<size_t>(o) * p.inputs;
      MmaM16N8K16(sums[tile], a, PairOrZero(w, at, o < p.outputs),
                  PairOrZero(w, at + 8, o < p.outputs));
    }
  }
  for (int tile = 0; tile < kReferenceTiles; ++tile) {
    for (int i = 0; i < 4; ++i) {
      const int r = row + i / 2 * 8;
      const int o = output + tile * 8 + lane % 4 * 2 + i % 2;
      if (r >= p.rows || o >= p.outputs) continue;
      const float sum =
          p.bias == nullptr ? sums[tile][i] : __fadd_rn(sums[tile][i], WidenBf16(p.bias[o]));
      const size_t to = (static_cast<size_t>(segment) * p.rows + r) * p.product_stride + o;
      if (p.product_f32) {
        static_cast<float*>(p.product)[to] = sum;
      } else {
        static_cast<__nv_bfloat16*>(p.product)[to] = __float2bfloat16_rn(sum);
      }
    }
  }
}

}  // namespace lockstep::kernels::cuda
