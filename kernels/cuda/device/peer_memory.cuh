#pragma once

#include <cstdint>

#include "kernels/cuda/collective/peer_kernels.h"
#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"
#include "kernels/cuda/device/primitive/system_memory.cuh"
#include "kernels/cuda/device/row_tree.cuh"

// How ranks meet and what they do with each other's sums. The order is that of segments, whoever
// holds them: T over all of them in registers. Placement-invariant.
namespace lockstep::kernels::cuda {

// The patience of one waiting thread, from its first look on. The alarm is far away, in the host's
// memory, so it is looked at seldom.
class PeerPatience {
 public:
  __device__ explicit PeerPatience(const PeerWait& wait) : wait_(wait) {}

  // Whether to wait no longer for `missing`.
  __device__ bool IsOver(int missing) {
    constexpr uint64_t kAlarmPeriodNs = 100000;
    const uint64_t now = Nanoseconds();
    if (begun_ == 0) begun_ = looked_ = now;
    if (now - looked_ < kAlarmPeriodNs) return false;
    looked_ = now;
    if (LoadAcquireSystem(&wait_.alarm->raised) != 0) return true;
    if (now - begun_ <= wait_.patience_ns) return false;
    StoreReleaseSystem(&wait_.alarm->raised, static_cast<uint32_t>(missing) + 1);
    return true;
  }

 private:
  const PeerWait& wait_;
  uint64_t begun_ = 0;
  uint64_t looked_ = 0;
};

// A thread for each rank. Nobody behind it starts early: kernels that wait on a device that ranks
// share would keep the others' products from running.
__global__ void __launch_bounds__(32) MeetPeersKernel(const __grid_constant__ PeerMeeting m) {
  PeerFlags* const own = m.flags[m.wait.rank];
  const uint32_t round = own->round + 1;
  __syncwarp();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer == 0) own->round = round;
  if (peer >= m.wait.ranks) return;
  __threadfence_system();
  StoreReleaseSystem(&m.flags[peer]->arrived[m.wait.rank], round);
  PeerPatience patience(m.wait);
  // Rounds are compared as distances: they wrap.
  while (static_cast<int32_t>(LoadAcquireSystem(&own->arrived[peer]) - round) < 0) {
    if (patience.IsOver(peer)) return;
  }
}

// Four neighbouring sums a thread and piece; the pieces of a turn are loaded at once.
template <int kSegments>
__global__ void __launch_bounds__(256)
    ScatterSumsKernel(const __grid_constant__ ScatterSumsCall call) {
  constexpr int kPieces = kSegments > 4 ? 1 : 8 / kSegments;
  const size_t piece = static_cast<size_t>(blockDim.x) * 4;
  const size_t step = static_cast<size_t>(gridDim.x) * kPieces * piece;
  size_t at = call.begin + static_cast<size_t>(blockIdx.x) * kPieces * piece + threadIdx.x * 4;
  for (; at < call.end; at += step) {
    float sums[kPieces][4];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (at + i * piece >= call.end) continue;
      TreeOfSegments<kSegments>([&](size_t s) { return call.sums.segments[s] + at + i * piece; },
                                sums[i]);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (at + i * piece >= call.end) continue;
      const uint2 rounded = Pack4(sums[i]);
      for (int rank = 0; rank < call.ranks; ++rank) {
        *reinterpret_cast<uint2*>(call.to[rank] + at + i * piece) = rounded;
      }
    }
  }
}

__global__ void __launch_bounds__(256)
    AddRoundedKernel(const uint16_t* sums, const __grid_constant__ SumUse use) {
  WaitForKernels();
  AllowNextKernel();
  const size_t eights = static_cast<size_t>(use.outputs) / 8;
  const size_t count = static_cast<size_t>(use.rows) * eights;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    uint4 sum = reinterpret_cast<const uint4*>(sums)[i];
    uint4* const to = reinterpret_cast<uint4*>(use.y + i / eights * use.y_stride + i % eights * 8);
    if (use.accumulate) {
      float residual[8];
      float update[8];
      Widen8(*to, residual);
      Widen8(sum, update);
#pragma unroll
      for (int j = 0; j < 8; ++j) residual[j] = __fadd_rn(residual[j], update[j]);
      sum = Pack8(residual);
    }
    *to = sum;
  }
}

template <int kSegments>
__global__ void ReduceSharedKernel(const __grid_constant__ SharedSums sums, size_t fours,
                                   float* y) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < fours;
       i += step) {
    float values[4];
    TreeOfSegments<kSegments>([&](size_t s) { return sums.segments[s] + 4 * i; }, values);
    reinterpret_cast<float4*>(y)[i] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

// A CTA takes kGatheredFours * blockDim.x fours of one row of one rank: that many bytes are on
// their way at once.
constexpr int kGatheredFours = 4;
__global__ void __launch_bounds__(256)
    GatherSharedKernel(const __grid_constant__ GatherSharedCall call) {
  const int rank = static_cast<int>(blockIdx.y);
  const size_t row = blockIdx.x;
  const int columns = call.columns[rank];
  const float4* const from =
      reinterpret_cast<const float4*>(call.x[rank] + row * static_cast<size_t>(columns));
  float4* const to =
      reinterpret_cast<float4*>(call.y + row * call.y_stride + call.first_column[rank]);
  const int threads = static_cast<int>(blockDim.x);
  const int first =
      static_cast<int>(blockIdx.z) * threads * kGatheredFours + static_cast<int>(threadIdx.x);
  float4 values[kGatheredFours];
#pragma unroll
  for (int i = 0; i < kGatheredFours; ++i) {
    if (first + i * threads < columns / 4) values[i] = from[first + i * threads];
  }
#pragma unroll
  for (int i = 0; i < kGatheredFours; ++i) {
    if (first + i * threads < columns / 4) to[first + i * threads] = values[i];
  }
}

}  // namespace lockstep::kernels::cuda
