#pragma once

#include <cuda_runtime.h>

// T of the contract over values that threads hold: contiguous values a thread, then xor-shuffles
// from 1 upward, then warps. A sum of two is the same from either side, so all lanes hold T.
namespace lockstep::kernels::cuda {

// T over an array of a power-of-two length.
template <int kCount>
__device__ __forceinline__ float TreeOfThread(const float (&v)[kCount]) {
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = v[i];
#pragma unroll
  for (int length = kCount / 2; length > 0; length /= 2) {
#pragma unroll
    for (int i = 0; i < length; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

// T over the segments of four neighbouring sums, each: segment s has them at from(s), 16-byte
// aligned.
template <int kSegments, typename From>
__device__ __forceinline__ void TreeOfSegments(const From& from, float* sums) {
  float4 parts[kSegments];
#pragma unroll
  for (int s = 0; s < kSegments; ++s) parts[s] = *reinterpret_cast<const float4*>(from(s));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float v[kSegments];
#pragma unroll
    for (int s = 0; s < kSegments; ++s) v[s] = (&parts[s].x)[i];
    sums[i] = TreeOfThread(v);
  }
}

// T over aligned groups of kLanes lanes.
template <int kLanes>
__device__ __forceinline__ float TreeOfLanes(float v) {
#pragma unroll
  for (int lane = 1; lane < kLanes; lane *= 2) v = v + __shfl_xor_sync(0xFFFFFFFF, v, lane);
  return v;
}

// T over all threads of a CTA of whole warps. `warp_sums` [32] in shared memory must not be in use
// by a call that other threads have not left.
__device__ __forceinline__ float TreeOfCta(float v, float* warp_sums) {
  const unsigned lane = threadIdx.x % 32;
  v = TreeOfLanes<32>(v);
  if (lane == 0) warp_sums[threadIdx.x / 32] = v;
  __syncthreads();  // All sums of warps are there.
  return TreeOfLanes<32>(lane < blockDim.x / 32 ? warp_sums[lane] : 0.0f);
}

}  // namespace lockstep::kernels::cuda
