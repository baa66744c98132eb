#pragma once

#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/primitive/async_copy.cuh"
#include "kernels/cuda/device/primitive/barrier.cuh"

// How queries, keys and values come into shared memory on any GPU since Ampere: a warp copies 16
// bytes a lane. Each lane says that its part of a stage is there when it has begun kLater further
// stages, and waits for its own copies then; a ring has more stages than that. The same verbs as
// BulkCopies.
namespace lockstep::kernels::cuda {

template <int kLater>
class AsyncCopies {
 public:
  static constexpr int kThreads = 32;
  static constexpr uint32_t kArrivals = kThreads;
  // The smallest GPUs give a CTA 99 KiB.
  static constexpr int kDecodeStages = 4;

  static __device__ __forceinline__ void FenceBarriers() {}

  static __device__ __forceinline__ void Expect(Barrier*, uint32_t /*bytes*/) {}

  __device__ __forceinline__ void Copied(Barrier* barrier) {
    CommitCopies();
    WaitForCopies<kLater>();
    ArriveAt(Push(barrier));
  }

  __device__ __forceinline__ void Finish() {
    WaitForCopies<0>();
#pragma unroll
    for (int i = 0; i < kLater; ++i) ArriveAt(Push(nullptr));
  }

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

  // The stage begun kLater before this one.
  __device__ __forceinline__ Barrier* Push(Barrier* barrier) {
    if constexpr (kLater == 0) return barrier;
    Barrier* const oldest = begun_[0];
#pragma unroll
    for (int i = 0; i + 1 < kLater; ++i) begun_[i] = begun_[i + 1];
    begun_[kLater - 1] = barrier;
    return oldest;
  }

  static __device__ __forceinline__ void ArriveAt(Barrier* barrier) {
    if (barrier != nullptr) Arrive(barrier);
  }

  Barrier* begun_[kLater > 0 ? kLater : 1] = {};  // Where it has not arrived yet; oldest first.
};

}  // namespace lockstep::kernels::cuda
