#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/functions.cuh"
#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/cluster_memory_sm90.cuh"
#include "kernels/cuda/device/row_tree.cuh"
#include "kernels/cuda/vocabulary_launch.h"

// One row of logits in the shared memory of a cluster: read from global memory once, then looked at
// as often as an op needs. A CTA holds whole tiles of 128 ids; tiles are subtrees of T, so that
// neither the cluster's size nor the row's neighbours can reach a bit.
namespace lockstep::kernels::cuda {

// What the CTAs of a cluster tell each other about their parts.
struct PartSummary {
  float max;
  int32_t bad;  // A NaN or +infinity is there.
};

// This CTA's part of a row.
struct RowPart {
  float* z;   // [ids], in shared memory; minus infinity from `count` on.
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

// Pieces of a part, so that the first are looked at while the last are on their way.
constexpr int kPieces = 4;

// Copies this CTA's part of a row to shared memory, all of it on its way at once, and calls
// look(value) for each value that this thread looks at. `barriers` [kPieces] are in shared memory.
template <typename Look>
__device__ __forceinline__ void LoadPart(const float* row, const RowPart& part, Barrier* barriers,
                                         const Look& look) {
  const float* const from = row + part.first;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = part.count + thread; i < part.ids; i += kVocabularyThreads) part.z[i] = -kInfinity;
  // Rows of a vocabulary that is no multiple of 4 start and end anywhere.
  if (reinterpret_cast<uintptr_t>(from) % sizeof(float4) != 0 || part.count % 4 != 0) {
    for (int i = thread; i < part.count; i += kVocabularyThreads) {
      const float z = __ldg(from + i);
      look(z);
      part.z[i] = z;
    }
    return;
  }
  const int quads = part.count / 4;
  const auto begin_of = [&](int piece) { return quads * piece / kPieces; };
  if (thread == 0) {
    for (int piece = 0; piece < kPieces; ++piece) InitBarrier(barriers + piece, 1);
    FenceBarrierInit();
    for (int piece = 0; piece < kPieces; ++piece) {
      const int begin = begin_of(piece);
      const uint32_t bytes = static_cast<uint32_t>(begin_of(piece + 1) - begin) * sizeof(float4);
      ArriveExpecting(barriers + piece, bytes);
      if (bytes > 0) BulkCopy(part.z + 4 * begin, from + 4 * begin, bytes, barriers + piece);
    }
  }
  __syncthreads();  // The barriers are there.
  const float4* const values = reinterpret_cast<const float4*>(part.z);
  for (int piece = 0; piece < kPieces; ++piece) {
    Wait(barriers + piece, 0);
#pragma unroll 4
    for (int i = begin_of(piece) + thread; i < begin_of(piece + 1); i += kVocabularyThreads) {
      const float4 z = values[i];
      look(z.x);
      look(z.y);
      look(z.z);
      look(z.w);
    }
  }
}

// Fills this CTA's part of the cluster's row.
__device__ __forceinline__ RowPart PartOfRow(float* z, int vocabulary) {
  const int ids = IdsPerCta(vocabulary, CtasInCluster());
  const int first = min(vocabulary, RankInCluster() * ids);
  return {z, first, min(ids, vocabulary - first), ids};
}

// Exchanges `mine` between the CTAs of the cluster: the row's maximum, a zero made positive, and
// whether any part is bad. `warps` [kVocabularyWarps] and `summary` are in shared memory, and stay
// untouched until the cluster's next barrier. What all threads wrote before is seen after.
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
  SyncCluster();  // CTAs' results are there.
  PartSummary v{-kInfinity, 0};
  if (lane < CtasInCluster()) v = *RemoteShared(summary, lane);
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
// the cluster stand before and after.
struct RowSums {
  float of_thread[kTilesMax / kVocabularyThreads];
};

__device__ __forceinline__ RowSums GatherSums(const float* sums, int tiles_per_cta, int tiles) {
  constexpr int kEach = kTilesMax / kVocabularyThreads;
  RowSums row;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int tile = static_cast<int>(threadIdx.x) * kEach + i;
    row.of_thread[i] = 0;
    if (tile < tiles) {
      row.of_thread[i] = RemoteShared(sums, tile / tiles_per_cta)[tile % tiles_per_cta];
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
