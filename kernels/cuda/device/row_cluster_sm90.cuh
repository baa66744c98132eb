#pragma once

#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/cluster_memory_sm90.cuh"
#include "kernels/cuda/device/vocabulary.cuh"

namespace lockstep::kernels::cuda {

// A row of logits in the shared memory of a cluster's CTAs, which read each other's.
struct ClusterRow {
  // Bits of a limb of a weight: sums of 2^16 of them fit 32 bits, and a CTA has fewer ids.
  static constexpr int kLimbBits = 16;
  // Pieces of a part, so that the first are looked at while the last are on their way.
  static constexpr int kPieces = 4;
  struct Loading {
    Barrier barriers[kPieces];
  };

  static __device__ __forceinline__ int Rank() { return RankInCluster(); }
  static __device__ __forceinline__ int Ctas() { return CtasInCluster(); }
  // A CTA that others read from must pass one more of these before it ends.
  static __device__ __forceinline__ void Sync() { SyncCluster(); }
  template <typename T>
  static __device__ __forceinline__ const T* Remote(const T* shared, int rank) {
    return RemoteShared(shared, rank);
  }

  // Copies this CTA's part of a row, all of it on its way at once, and calls look(value) for each
  // value that this thread looks at. A barrier of the CTA must follow.
  template <typename Look>
  static __device__ __forceinline__ void Load(const float* row, const RowPart& part,
                                              Loading& loading, const Look& look) {
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
      for (int piece = 0; piece < kPieces; ++piece) InitBarrier(loading.barriers + piece, 1);
      FenceBarrierInit();
      for (int piece = 0; piece < kPieces; ++piece) {
        const int begin = begin_of(piece);
        const uint32_t bytes = static_cast<uint32_t>(begin_of(piece + 1) - begin) * sizeof(float4);
        ArriveExpecting(loading.barriers + piece, bytes);
        if (bytes > 0)
          BulkCopy(part.z + 4 * begin, from + 4 * begin, bytes, loading.barriers + piece);
      }
    }
    __syncthreads();  // The barriers are there.
    const float4* const values = reinterpret_cast<const float4*>(part.z);
    for (int piece = 0; piece < kPieces; ++piece) {
      Wait(loading.barriers + piece, 0);
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
};

}  // namespace lockstep::kernels::cuda
