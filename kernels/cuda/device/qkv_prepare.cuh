#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"
#include "kernels/cuda/device/rms_norm.cuh"
#include "kernels/cuda/device/row_tree.cuh"
#include "kernels/cuda/kv_layout.h"

// Norm and rotation of q and k, and the write of k and v into the pool. A head is kHeadDim / 8
// lanes of 8 neighbouring dims each. The norm is that of rms_norm.cuh with T over the head; then
// RNbf16(RNbf16(x * cos) + RNbf16(rot(x) * sin)) with rot(x) = (-second half, first half).
// Placement-invariant.
namespace lockstep::kernels::cuda {

inline constexpr int kPrepareThreads = 256;

struct QkvPrepareParameters {
  uint16_t* qkv;  // bf16 [rows, (q_heads + 2 kv_heads) * head_dim]
  const float* q_norm;
  const float* k_norm;
  const float* rope_table;  // [positions, head_dim]: cosines of half the dims, then sines.
  const int32_t* positions;
  const int32_t* row_sequence;
  const int32_t* block_table;
  KvPool pool;
  int blocks_max;
  int q_heads;
  int kv_heads;
  int layer;
  float inverse_head_dim;
  float epsilon;
};

// A lane's share of a head's norm and rotation.
struct LaneWeights {
  float q[8];
  float k[8];
};
struct LaneAngles {
  float cos[8];
  float sin[8];
};

// `table` is the position's row.
template <int kHeadDim>
__device__ __forceinline__ LaneAngles AnglesOf(const float* table, int lane) {
  constexpr int kHalf = kHeadDim / 2;
  LaneAngles angles;
  Load8(table + lane * 8 % kHalf, angles.cos);
  Load8(table + kHalf + lane * 8 % kHalf, angles.sin);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    angles.cos[i] = RoundedToBf16(angles.cos[i]);
    angles.sin[i] = RoundedToBf16(angles.sin[i]);
  }
  return angles;
}

template <int kHeadDim>
__device__ __forceinline__ void NormHead(float (&x)[8], const float (&weight)[8],
                                         float inverse_head_dim, float epsilon) {
  float squares[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) squares[i] = x[i] * x[i];
  const float r =
      InverseRootMean(TreeOfLanes<kHeadDim / 8>(TreeOfThread(squares)), inverse_head_dim, epsilon);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = RoundedToBf16(weight[i] * RoundedToBf16(x[i] * r));
}

template <int kHeadDim>
__device__ __forceinline__ void RotateHead(float (&x)[8], const LaneAngles& angles, int lane) {
  constexpr int kHalfLanes = kHeadDim / 16;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float other = __shfl_xor_sync(0xFFFFFFFF, x[i], kHalfLanes);
    const float rotated = lane < kHalfLanes ? -other : other;
    x[i] =
        RoundedToBf16(RoundedToBf16(x[i] * angles.cos[i]) + RoundedToBf16(rotated * angles.sin[i]));
  }
}

// Norm, where the head's kind has one, and rotation of q and k.
template <int kHeadDim>
__device__ __forceinline__ uint4 PreparedHead(const QkvPrepareParameters& p, const uint4& raw,
                                              int head, int lane, const LaneWeights& weights,
                                              const LaneAngles& angles) {
  const bool is_query = head < p.q_heads;
  float x[8];
  Widen8(raw, x);
  // Computed by whole warps, whatever their heads are.
  if (p.q_norm != nullptr || p.k_norm != nullptr) {
    float weight[8];
    float normed[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      weight[i] = is_query ? weights.q[i] : weights.k[i];
      normed[i] = x[i];
    }
    NormHead<kHeadDim>(normed, weight, p.inverse_head_dim, p.epsilon);
    const bool has_norm = (is_query ? p.q_norm : p.k_norm) != nullptr;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = has_norm ? normed[i] : x[i];
  }
  RotateHead<kHeadDim>(x, angles, lane);
  return head < p.q_heads + p.kv_heads ? Pack8(x) : raw;
}

// kPasses heads a lane, all of which are asked for at once.
template <int kHeadDim, int kPasses>
__global__ void __launch_bounds__(kPrepareThreads)
    QkvPrepareKernel(const __grid_constant__ QkvPrepareParameters p) {
  constexpr int kLanes = kHeadDim / 8;
  constexpr int kHeads = kPrepareThreads / kLanes;
  const int row = static_cast<int>(blockIdx.x);
  const int heads = p.q_heads + 2 * p.kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int first =
      static_cast<int>(blockIdx.y) * kPasses * kHeads + static_cast<int>(threadIdx.x) / kLanes;
  LaneWeights weights = {};
  if (p.q_norm != nullptr) Load8(p.q_norm + 8 * lane, weights.q);
  if (p.k_norm != nullptr) Load8(p.k_norm + 8 * lane, weights.k);
  WaitForKernels();
  AllowNextKernel();
  const int sequence = p.row_sequence[row];
  const int position = p.positions[row];
  uint4* const qkv = reinterpret_cast<uint4*>(p.qkv) +
                     static_cast<size_t>(row) * static_cast<size_t>(heads * kLanes) + lane;
  uint4 raw[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    // Lanes without a head of their own do the last one again, for the shuffles, and write nothing.
    raw[pass] = qkv[min(first + pass * kHeads, heads - 1) * kLanes];
  }
  if (sequence < 0) return;
  const LaneAngles angles =
      AnglesOf<kHeadDim>(p.rope_table + static_cast<size_t>(position) * kHeadDim, lane);
  const int page =
      p.block_table[static_cast<size_t>(sequence) * p.blocks_max + position / kPageTokens];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int head = first + pass * kHeads;
    const uint4 result =
        PreparedHead<kHeadDim>(p, raw[pass], min(head, heads - 1), lane, weights, angles);
    if (head >= heads) continue;
    if (head < p.q_heads) {
      qkv[head * kLanes] = result;
      continue;
    }
    const int kv_head = (head - p.q_heads) % p.kv_heads;
    const KvSide side = head < p.q_heads + p.kv_heads ? KvSide::kKeys : KvSide::kValues;
    uint16_t* const tile = p.pool.data + KvTileOffset(p.pool, page, p.layer, kv_head, side);
    *reinterpret_cast<uint4*>(tile + KvElementOffset(position % kPageTokens, 8 * lane)) = result;
  }
}

}  // namespace lockstep::kernels::cuda
