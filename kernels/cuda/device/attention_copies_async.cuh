#pragma once

#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/primitive/async_copy.cuh"

// How queries, keys and values come into shared memory on any GPU since Ampere: a warp copies 16
// bytes a lane, and every lane's copies arrive on the stage's barrier when they are done. The same
// verbs as BulkCopies.
namespace lockstep::kernels::cuda {

struct AsyncCopies {
  static constexpr int kThreads = 32;
  // What a thread stored itself before Expect is released by an ordinary arrival.
  static constexpr uint32_t kArrivals = kThreads + 1;
  // The smallest GPUs give a CTA 99 KiB.
  static constexpr int kDecodeStages = 4;

  static __device__ __forceinline__ void FenceBarriers() {}

  static __device__ __forceinline__ void Expect(Barrier* barrier, uint32_t /*bytes*/) {
    Arrive(barrier);
  }

  static __device__ __forceinline__ void Copied(Barrier* barrier) { ArriveAfterCopies(barrier); }

  template <int kBytes>
  static __device__ __forceinline__ void CopyRow(uint8_t* shared, const void* global, Barrier*) {
#pragma unroll
    for (int at = 0; at < kBytes; at += kChunk) {
      CopyAsync(SharedAddress(shared) + at, static_cast<const uint8_t*>(global) + at, true);
    }
  }

  template <int kHeadDim, int kTokens>
  static __device__ __forceinline__ void CopyPage(const AttentionParameters& p, int page,
                                                  int kv_head, KvSide side, int part, int valid,
                                                  uint8_t* shared, Barrier*, int thread) {
    constexpr int kSlabs = kHeadDim / kSlabDims;
    constexpr int kRowChunks = kSlabDims * sizeof(uint16_t) / kChunk;
    constexpr int kSlabChunks = kPageTokens * kRowChunks;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(
        p.pool.data + KvTileOffset(p.pool, page, p.layer, kv_head, side));
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      const uint32_t target =
          SharedAddress(shared) + (slab * (kTokens / kPageTokens) + part) * kSlabChunks * kChunk;
#pragma unroll 8
      for (int chunk = thread; chunk < kSlabChunks; chunk += kThreads) {
        CopyAsync(target + chunk * kChunk, from + (slab * kSlabChunks + chunk) * kChunk,
                  chunk / kRowChunks < valid);
      }
    }
  }

 private:
  static constexpr int kChunk = 16;
};

}  // namespace lockstep::kernels::cuda
