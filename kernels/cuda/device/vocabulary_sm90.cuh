#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/functions.cuh"
#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/cluster_memory_sm90.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap_sm90.cuh"
#include "kernels/cuda/device/row_tree.cuh"
#include "kernels/cuda/vocabulary_launch.h"

// One row of logits in the shared memory of a cluster: read from global memory once, then looked at
// as often as an op needs; then the next one. A CTA holds whole tiles of 128 ids; tiles are
// subtrees of T, so that neither the cluster's size nor the row's neighbours can reach a bit.
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

// This CTA's part of the rows of its cluster.
__device__ __forceinline__ RowPart PartOfRow(float* z, int vocabulary) {
  const int ids = IdsPerCta(vocabulary, CtasInCluster());
  const int first = min(vocabulary, RankInCluster() * ids);
  return {z, first, min(ids, vocabulary - first), ids};
}

// Pieces of a part, so that the first are looked at while the last are on their way.
constexpr int kPieces = 4;

// Brings one row's part after the other to shared memory, each while the cluster still sums up what
// it found in the row before.
class PartLoader {
 public:
  // `barriers` [kPieces] are in shared memory, for this loader alone.
  __device__ __forceinline__ PartLoader(const float* logits, int vocabulary, const RowPart& part,
                                        Barrier* barriers)
      : logits_(logits), vocabulary_(vocabulary), part_(part), barriers_(barriers) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = part.count + thread; i < part.ids; i += kVocabularyThreads) {
      part.z[i] = -kInfinity;
    }
    if (thread == 0) {
      for (int piece = 0; piece < kPieces; ++piece) InitBarrier(barriers + piece, 1);
      FenceBarrierInit();
    }
  }

  // Asks for this CTA's part of a row; its threads have done with the part before.
  __device__ __forceinline__ void Ask(int row) {
    FenceAsyncProxy();
    __syncthreads();  // Nobody looks at the part any more, nor writes to it; barriers are there.
    if (threadIdx.x != 0 || !IsCopied(row)) return;
    const float* const from = From(row);
    for (int piece = 0; piece < kPieces; ++piece) {
      const int begin = Begin(piece);
      const uint32_t bytes = static_cast<uint32_t>(Begin(piece + 1) - begin) * sizeof(float4);
      ArriveExpecting(barriers_ + piece, bytes);
      if (bytes > 0) BulkCopy(part_.z + 4 * begin, from + 4 * begin, bytes, barriers_ + piece);
    }
  }

  // Waits for the row that was asked for, and calls look(value) for each value that this thread
  // looks at.
  template <typename Look>
  __device__ __forceinline__ void Take(int row, const Look& look) {
    const int thread = static_cast<int>(threadIdx.x);
    if (!IsCopied(row)) {
      const float* const from = From(row);
      for (int i = thread; i < part_.count; i += kVocabularyThreads) {
        const float z = from[i];
        look(z);
        part_.z[i] = z;
      }
      return;
    }
    const float4* const values = reinterpret_cast<const float4*>(part_.z);
    for (int piece = 0; piece < kPieces; ++piece) {
      Wait(barriers_ + piece, parity_);
#pragma unroll 4
      for (int i = Begin(piece) + thread; i < Begin(piece + 1); i += kVocabularyThreads) {
        const float4 z = values[i];
        look(z.x);
        look(z.y);
        look(z.z);
        look(z.w);
      }
    }
    parity_ ^= 1;
  }

 private:
  __device__ __forceinline__ const float* From(int row) const {
    return logits_ + static_cast<size_t>(row) * vocabulary_ + part_.first;
  }
  // Rows of a vocabulary that is no multiple of 4 start and end anywhere.
  __device__ __forceinline__ bool IsCopied(int row) const {
    return reinterpret_cast<uintptr_t>(From(row)) % sizeof(float4) == 0 && part_.count % 4 == 0;
  }
  __device__ __forceinline__ int Begin(int piece) const {
    return part_.count / 4 * piece / kPieces;
  }

  const float* logits_;
  int vocabulary_;
  const RowPart& part_;
  Barrier* barriers_;
  uint32_t parity_ = 0;
};

// Rows of a launch that this thread's cluster takes: its own number, and every so many after it.
__device__ __forceinline__ int FirstRow() { return static_cast<int>(blockIdx.x) / CtasInCluster(); }
__device__ __forceinline__ int RowStep() { return static_cast<int>(gridDim.x) / CtasInCluster(); }

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
