#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/api/elementwise.h"
#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap_sm90.cuh"

// Ops without a reduction over a row, in vectors of 8 bf16. Placement-invariant.
namespace lockstep::kernels::cuda {

inline constexpr int kRowThreads = 256;

// The first of a thread's kVectors vectors of a row, kRowThreads apart; the grid has the rows in x
// and parts of a row in y.
template <int kVectors>
__device__ __forceinline__ int VectorOfRow() {
  return static_cast<int>(blockIdx.y * kVectors * kRowThreads + threadIdx.x);
}

// y[r, :] = x[source[r], :]. A negative source stands in `drawn`.
__global__ void __launch_bounds__(kRowThreads)
    CopyRowsKernel(const uint4* x, const int32_t* source, const int32_t* drawn, uint4* y,
                   int vectors) {
  WaitForKernels();
  AllowNextKernel();
  const int vector = VectorOfRow<1>();
  if (vector >= vectors) return;
  const size_t row = blockIdx.x;
  int at = source[row];
  if (at < 0) at = max(0, drawn[DrawnSlot(at)]);
  y[row * vectors + vector] = x[static_cast<size_t>(at) * vectors + vector];
}

// silu(g) = g / (1 + exp(-g)) in fp32, with the division of IEEE and the exponential of CUDA's
// library, as Hugging Face's modules on this device.
__device__ __forceinline__ float Silu(float g) { return __fdiv_rn(g, 1.0f + expf(-g)); }

// Where Silu may be approximated: its exponential neither overflows nor meets infinity.
__device__ __forceinline__ bool IsModerate(float g) { return fabsf(g) <= 80.0f; }

// silu of a moderate bf16 number in a third of the instructions, within 2^-19 of Silu: 2^-22 of the
// exponential, 2^-23 of the reciprocal, five roundings, and Silu's own errors. log2(e) is cut in
// two, so that the product with its first 15 bits is exact.
__device__ __forceinline__ float NearlySilu(float g) {
  constexpr float kLog2EHigh = 0x1.7154p+0f;
  constexpr float kLow = 0x1.480fb6p-18f;  // (log2(e) - kLog2EHigh) ln 2
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(g * -kLog2EHigh));
  const float denominator = 1.0f + power * __fmaf_rn(g, -kLow, 1.0f);
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(denominator));
  return g * reciprocal;
}

// Whether RNbf16 of a number within 2^-19 of x could be another than that of x.
__device__ __forceinline__ bool IsNearTie(float x) {
  constexpr uint32_t kMargin = 32;
  return (__float_as_uint(x) - (0x8000u - kMargin)) % 0x10000u <= 2 * kMargin;
}

// RNbf16(silu(g)) of 8 numbers, in place.
__device__ __forceinline__ void RoundedSilu8(float (&g)[8]) {
  float near[8];
  bool redo = false;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    near[i] = NearlySilu(g[i]);
    redo |= IsNearTie(near[i]) || !IsModerate(g[i]);
  }
  if (redo) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (IsNearTie(near[i]) || !IsModerate(g[i])) near[i] = Silu(g[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) g[i] = RoundedToBf16(near[i]);
}

// y = RNbf16(RNbf16(silu(g)) * u); gate_up: [rows, 2 * width], gates first.
template <int kVectors>
__global__ void __launch_bounds__(kRowThreads)
    SwiGluKernel(const uint4* gate_up, uint4* y, int vectors) {
  const int first = VectorOfRow<kVectors>();
  const size_t row = blockIdx.x;
  const uint4* const gates = gate_up + row * 2 * vectors;
  uint4 gate[kVectors];
  uint4 up[kVectors];
  WaitForKernels();
  AllowNextKernel();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = first + i * kRowThreads;
    if (vector >= vectors) continue;
    gate[i] = gates[vector];
    up[i] = gates[vectors + vector];
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = first + i * kRowThreads;
    if (vector >= vectors) continue;
    float g[8];
    float u[8];
    Widen8(gate[i], g);
    Widen8(up[i], u);
    RoundedSilu8(g);
#pragma unroll
    for (int k = 0; k < 8; ++k) u[k] = g[k] * u[k];
    y[row * vectors + vector] = Pack8(u);
  }
}

}  // namespace lockstep::kernels::cuda
