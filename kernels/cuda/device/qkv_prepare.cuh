#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/bf16_vector.cuh"
#include "kernels/cuda/device/rms_norm.cuh"
#include "kernels/cuda/device/row_tree.cuh"
#include "kernels/cuda/kv_layout.h"

// Norm and rotation of q and k, and the write of k and v into the pool. A head is kHeadDim / 4
// lanes of 4 neighbouring dims each. The norm is that of rms_norm.cuh with T over the head; then
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

template <int kHeadDim>
__device__ __forceinline__ void NormHead(float (&x)[4], const float* weight, int lane,
                                         float inverse_head_dim, float epsilon) {
  const float squares[4] = {x[0] * x[0], x[1] * x[1], x[2] * x[2], x[3] * x[3]};
  const float r =
      InverseRootMean(TreeOfLanes<kHeadDim / 4>(TreeOfThread(squares)), inverse_head_dim, epsilon);
  const float4 w = __ldg(reinterpret_cast<const float4*>(weight) + lane);
  const float weights[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = RoundedToBf16(weights[i] * RoundedToBf16(x[i] * r));
}

// `table` is the position's row.
template <int kHeadDim>
__device__ __forceinline__ void RotateHead(float (&x)[4], const float* table, int lane) {
  constexpr int kHalfLanes = kHeadDim / 8;
  const float4* const row = reinterpret_cast<const float4*>(table);
  const float4 c = __ldg(row + lane % kHalfLanes);
  const float4 s = __ldg(row + kHalfLanes + lane % kHalfLanes);
  const float cos[4] = {c.x, c.y, c.z, c.w};
  const float sin[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float other = __shfl_xor_sync(0xFFFFFFFF, x[i], kHalfLanes);
    const float rotated = lane < kHalfLanes ? -other : other;
    x[i] = RoundedToBf16(RoundedToBf16(x[i] * RoundedToBf16(cos[i])) +
                         RoundedToBf16(rotated * RoundedToBf16(sin[i])));
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kPrepareThreads)
    QkvPrepareKernel(const __grid_constant__ QkvPrepareParameters p) {
  constexpr int kLanes = kHeadDim / 4;
  constexpr int kHeads = kPrepareThreads / kLanes;
  const int row = static_cast<int>(blockIdx.x);
  const int sequence = p.row_sequence[row];
  if (sequence < 0) return;
  const int heads = p.q_heads + 2 * p.kv_heads;
  const int thread = static_cast<int>(threadIdx.x);
  const int wanted = static_cast<int>(blockIdx.y) * kHeads + thread / kLanes;
  // Lanes without a head of their own do the last one again, for the shuffles, and write nothing.
  const int head = min(wanted, heads - 1);
  const int lane = thread % kLanes;
  const int position = p.positions[row];
  uint2* const at = reinterpret_cast<uint2*>(
      p.qkv + (static_cast<size_t>(row) * heads + head) * kHeadDim + 4 * lane);
  const uint2 raw = *at;
  float x[4];
  Widen4(raw, x);
  const bool is_query = head < p.q_heads;
  const bool is_value = head >= p.q_heads + p.kv_heads;
  const float* const norm = is_query ? p.q_norm : p.k_norm;
  // Both are computed by whole warps, whatever their heads are.
  if (p.q_norm != nullptr || p.k_norm != nullptr) {
    float normed[4] = {x[0], x[1], x[2], x[3]};
    NormHead<kHeadDim>(normed, norm != nullptr ? norm : (is_query ? p.k_norm : p.q_norm), lane,
                       p.inverse_head_dim, p.epsilon);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = norm != nullptr ? normed[i] : x[i];
  }
  RotateHead<kHeadDim>(x, p.rope_table + static_cast<size_t>(position) * kHeadDim, lane);
  const uint2 result = is_value ? raw : Pack4(x);
  if (wanted >= heads) return;
  if (is_query) {
    *at = result;
    return;
  }
  const int page =
      p.block_table[static_cast<size_t>(sequence) * p.blocks_max + position / kPageTokens];
  const int kv_head = (head - p.q_heads) % p.kv_heads;
  const KvSide side = is_value ? KvSide::kValues : KvSide::kKeys;
  uint16_t* const tile = p.pool.data + KvTileOffset(p.pool, page, p.layer, kv_head, side);
  *reinterpret_cast<uint2*>(tile + KvElementOffset(position % kPageTokens, 4 * lane)) = result;
}

}  // namespace lockstep::kernels::cuda
