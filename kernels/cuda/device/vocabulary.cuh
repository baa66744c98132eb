#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/functions.cuh"
#include "kernels/cuda/device/row_tree.cuh"
#include "kernels/cuda/vocabulary_launch.h"

// One row of logits: read from global memory once, then looked at as often as an op needs. The CTAs
// of a group hold parts of it: `Group` is ClusterRow, whose CTAs read each other's shared memory,
// or CtaRow, one CTA with the row in global memory. A CTA holds whole tiles of 128 ids; tiles are
// subtrees of T, so that neither the group nor the row's neighbours can reach a bit.
namespace lockstep::kernels::cuda {

// What the CTAs of a group tell each other about their parts.
struct PartSummary {
  float max;
  int32_t bad;  // A NaN or +infinity is there.
};

// This CTA's part of a row.
struct RowPart {
  float* z;   // [ids], 16-byte aligned; minus infinity from `count` on.
  int first;  // Id of z[0].
  int count;  // Ids of the vocabulary.
  int ids;    // A multiple of kTileIds, the same in all CTAs.
};

// Lanes of a warp see the same result.
__device__ __forceinline__ float MaxOfWarp(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, lane));
  return v;
}

// This CTA's part of the group's row, which `z` has room for.
template <typename Group>
__device__ __forceinline__ RowPart PartOfRow(float* z, int vocabulary) {
  const int ids = IdsPerCta(vocabulary, Group::Ctas());
  const int first = min(vocabulary, Group::Rank() * ids);
  return {z, first, min(ids, vocabulary - first), ids};
}

// Exchanges `mine` between the CTAs of the group: the row's maximum, a zero made positive, and
// whether any part is bad. `warps` [kVocabularyWarps] and `summary` are in shared memory, and stay
// untouched until the group's next barrier. What all threads wrote before is seen after.
template <typename Group>
__device__ __forceinline__ PartSummary SummaryOfRow(PartSummary mine, PartSummary* warps,
                                                    PartSummary* summary) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  mine = {MaxOfWarp(mine.max), __any_sync(0xFFFFFFFF, mine.bad) != 0};
  if (lane == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();  // Warps' results are there.
  if (threadIdx.x < 32) {
    const PartSummary v = lane < kVocabularyWarps ? warps[lane] : PartSummary{-kInfinity, 0};
    mine = {MaxOfWarp(v.max), __any_sync(0xFFFFFFFF, v.bad) != 0};
    if (lane == 0) *summary = mine;
  }
  Group::Sync();  // CTAs' results are there.
  PartSummary v{-kInfinity, 0};
  if (lane < Group::Ctas()) v = *Group::Remote(summary, lane);
  return {MaxOfWarp(v.max) + 0.0f, __any_sync(0xFFFFFFFF, v.bad) != 0};
}

// RN(z / temperature); what overflows becomes the largest finite number of its sign, a zero
// positive. Temperature 1 changes nothing but zeros.
__device__ __forceinline__ float Scaled(float z, float temperature) {
  if (temperature == 1.0f) return z + 0.0f;
  float q = __fdiv_rn(z, temperature) + 0.0f;
  if (q > kHighest) q = kHighest;
  if (q < -kHighest && z >= -kHighest) q = -kHighest;
  return q;
}

// Sums of value(z) over the tiles of this CTA, into sums [tiles]. value(minus infinity) is 0.
template <typename Value>
__device__ __forceinline__ void SumTiles(const RowPart& part, float* sums, const Value& value) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tiles = part.ids / kTileIds;
#pragma unroll 2
  for (int tile = static_cast<int>(threadIdx.x / 32); tile < tiles; tile += kVocabularyWarps) {
    const float4 z = *reinterpret_cast<const float4*>(part.z + tile * kTileIds + 4 * lane);
    const float v[4] = {value(z.x), value(z.y), value(z.z), value(z.w)};
    const float sum = TreeOfLanes<32>(TreeOfThread(v));
    if (lane == 0) sums[tile] = sum;
  }
}

// The tiles' sums of the whole row, spread over the threads of one CTA: the caller's barriers of
// the group stand before and after.
struct RowSums {
  float of_thread[kTilesMax / kVocabularyThreads];
};

template <typename Group>
__device__ __forceinline__ RowSums GatherSums(const float* sums, int tiles_per_cta, int tiles) {
  constexpr int kEach = kTilesMax / kVocabularyThreads;
  RowSums row;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int tile = static_cast<int>(threadIdx.x) * kEach + i;
    row.of_thread[i] = 0;
    if (tile < tiles) {
      row.of_thread[i] = Group::Remote(sums, tile / tiles_per_cta)[tile % tiles_per_cta];
    }
  }
  return row;
}

// T over the whole row; warp_sums as in TreeOfCta.
__device__ __forceinline__ float TreeOfRow(const RowSums& row, float* warp_sums) {
  return TreeOfCta(TreeOfThread(row.of_thread), warp_sums);
}

// An order-preserving key of a logit that is not NaN; both zeros have one.
__device__ __forceinline__ uint32_t KeyOf(float z) {
  const uint32_t bits = __float_as_uint(z + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float LogitOfKey(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7FFFFFFFu : ~key);
}

}  // namespace lockstep::kernels::cuda
