#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/api/elementwise.h"
#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"

// Ops without a reduction over a row, in vectors of 8 bf16. Placement-invariant.
namespace lockstep::kernels::cuda {

inline constexpr int kRowThreads = 256;

// This thread's vector of a row; the grid has the rows in x and parts of a row in y.
__device__ __forceinline__ int VectorOfRow() {
  return static_cast<int>(blockIdx.y * kRowThreads + threadIdx.x);
}

// y[r, :] = x[source[r], :]. A negative source stands in `drawn`.
__global__ void __launch_bounds__(kRowThreads)
    CopyRowsKernel(const uint4* x, const int32_t* source, const int32_t* drawn, uint4* y,
                   int vectors) {
  WaitForKernels();
  AllowNextKernel();
  const int vector = VectorOfRow();
  if (vector >= vectors) return;
  const size_t row = blockIdx.x;
  int at = source[row];
  if (at < 0) at = max(0, drawn[DrawnSlot(at)]);
  y[row * vectors + vector] = x[static_cast<size_t>(at) * vectors + vector];
}

// silu(g) = g / (1 + exp(-g)) in fp32, with the division of IEEE and the exponential of CUDA's
// library, as Hugging Face's modules on this device.
__device__ __forceinline__ float Silu(float g) { return __fdiv_rn(g, 1.0f + expf(-g)); }

// y = RNbf16(RNbf16(silu(g)) * u); gate_up: [rows, 2 * width], gates first.
__global__ void __launch_bounds__(kRowThreads)
    SwiGluKernel(const uint4* gate_up, uint4* y, int vectors) {
  WaitForKernels();
  AllowNextKernel();
  const int vector = VectorOfRow();
  if (vector >= vectors) return;
  const size_t row = blockIdx.x;
  float g[8];
  float u[8];
  Widen8(gate_up[row * 2 * vectors + vector], g);
  Widen8(gate_up[(row * 2 + 1) * vectors + vector], u);
#pragma unroll
  for (int i = 0; i < 8; ++i) u[i] = RoundedToBf16(Silu(g[i])) * u[i];
  y[row * vectors + vector] = Pack8(u);
}

}  // namespace lockstep::kernels::cuda
