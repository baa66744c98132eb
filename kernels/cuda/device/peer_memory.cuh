#pragma once

#include <cstdint>

#include "kernels/cuda/collective/peer_kernels.h"
#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/row_tree.cuh"

// How ranks meet and what they do with each other's sums. The order is that of segments, whoever
// holds them: T over all of them in registers. Placement-invariant.
namespace lockstep::kernels::cuda {

__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Everything before it is seen by whoever sees the value.
__device__ __forceinline__ void StoreReleaseSystem(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t LoadAcquireSystem(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

constexpr uint64_t kAlarmPeriodNs = 100000;

// A thread for each rank. Nobody behind it starts early: kernels that wait on a device that ranks
// share would keep the others' products from running.
__global__ void __launch_bounds__(32) MeetPeersKernel(const __grid_constant__ PeerMeeting m) {
  PeerFlags* const own = m.flags[m.rank];
  const uint32_t round = own->round + 1;
  __syncwarp();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer == 0) own->round = round;
  if (peer >= m.ranks) return;
  __threadfence_system();
  StoreReleaseSystem(&m.flags[peer]->arrived[m.rank], round);
  const uint64_t begun = Nanoseconds();
  uint64_t looked = begun;
  // Rounds are compared as distances: they wrap.
  while (static_cast<int32_t>(LoadAcquireSystem(&own->arrived[peer]) - round) < 0) {
    const uint64_t now = Nanoseconds();
    if (now - looked < kAlarmPeriodNs) continue;  // The alarm is far away, in the host's memory.
    looked = now;
    if (LoadAcquireSystem(&m.alarm->raised) != 0) return;
    if (now - begun > m.patience_ns) {
      StoreReleaseSystem(&m.alarm->raised, static_cast<uint32_t>(peer) + 1);
      return;
    }
  }
}

// T over the segments of four neighbouring sums.
template <int kSegments>
__device__ __forceinline__ void SumFour(const SharedSums& sums, size_t at, float (&values)[4]) {
  float4 parts[kSegments];
#pragma unroll
  for (int s = 0; s < kSegments; ++s) {
    parts[s] = *reinterpret_cast<const float4*>(sums.segments[s] + at);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float v[kSegments];
#pragma unroll
    for (int s = 0; s < kSegments; ++s) v[s] = (&parts[s].x)[i];
    values[i] = TreeOfThread(v);
  }
}

template <int kSegments>
__global__ void AddSharedKernel(const __grid_constant__ AddSharedCall call) {
  const size_t fours = static_cast<size_t>(call.outputs) / 4;
  const size_t count = static_cast<size_t>(call.rows) * fours;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const size_t row = i / fours;
    const size_t o = i % fours * 4;
    float values[4];
    SumFour<kSegments>(call.sums, row * call.outputs + o, values);
    uint2* const to = reinterpret_cast<uint2*>(call.y + row * call.y_stride + o);
    if (call.accumulate) {
      float residual[4];
      Widen4(*to, residual);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = __fadd_rn(residual[j], RoundedToBf16(values[j]));
    }
    *to = Pack4(values);
  }
}

template <int kSegments>
__global__ void ReduceSharedKernel(const __grid_constant__ SharedSums sums, size_t fours,
                                   float* y) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < fours;
       i += step) {
    float values[4];
    SumFour<kSegments>(sums, 4 * i, values);
    reinterpret_cast<float4*>(y)[i] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

// One CTA a row and rank.
__global__ void GatherSharedKernel(const __grid_constant__ GatherSharedCall call) {
  const int rank = static_cast<int>(blockIdx.y);
  const size_t row = blockIdx.x;
  const int columns = call.columns[rank];
  const float4* const from =
      reinterpret_cast<const float4*>(call.x[rank] + row * static_cast<size_t>(columns));
  float4* const to =
      reinterpret_cast<float4*>(call.y + row * call.y_stride + call.first_column[rank]);
  for (int i = static_cast<int>(threadIdx.x); i < columns / 4; i += static_cast<int>(blockDim.x)) {
    to[i] = from[i];
  }
}

}  // namespace lockstep::kernels::cuda
