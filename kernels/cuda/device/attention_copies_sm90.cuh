#pragma once

#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"

// How queries, keys and values come into shared memory on Hopper: one thread asks the copy engine.
// For each stage: Expect, copies, Copied; and at last Finish. A stage's barrier gets kArrivals.
namespace lockstep::kernels::cuda {

struct BulkCopies {
  static constexpr int kThreads = 1;        // That copy keys and values.
  static constexpr uint32_t kArrivals = 1;  // On a barrier, for one stage.
  static constexpr int kDecodeStages = 6;   // Of 64 tokens. Two CTAs fit into a multiprocessor.

  // Makes initialised barriers known; for the thread that did it.
  static __device__ __forceinline__ void FenceBarriers() { FenceBarrierInit(); }

  // For one thread, before the stage's first copy.
  static __device__ __forceinline__ void Expect(Barrier* barrier, uint32_t bytes) {
    ArriveExpecting(barrier, bytes);
  }

  // For every copying thread, after its copies.
  static __device__ __forceinline__ void Copied(Barrier*) {}

  // For every copying thread, after its last Copied.
  static __device__ __forceinline__ void Finish() {}

  // A row of kBytes, for one thread.
  template <int kBytes>
  static __device__ __forceinline__ void CopyRow(uint8_t* shared, const void* global,
                                                 Barrier* barrier) {
    BulkCopy(shared, global, kBytes, barrier);
  }

  // Copies one side of a page to its part of a tile of kTokens, [slab][token][64 dims]; tokens from
  // `valid` on become zero. For kThreads threads, of which this is `thread`.
  template <int kHeadDim, int kTokens>
  static __device__ __forceinline__ void CopyPage(const AttentionParameters& p, int page,
                                                  int kv_head, KvSide side, int part, int valid,
                                                  uint8_t* shared, Barrier* barrier,
                                                  int /*thread*/) {
    constexpr int kSlabs = kHeadDim / kSlabDims;
    constexpr uint32_t kRowBytes = kSlabDims * sizeof(uint16_t);
    constexpr uint32_t kSlabBytes = kPageTokens * kRowBytes;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(
        p.pool.data + KvTileOffset(p.pool, page, p.layer, kv_head, side));
    if (kTokens == kPageTokens && valid == kPageTokens) {
      BulkCopy(shared, from, kSlabs * kSlabBytes, barrier);
      return;
    }
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      uint8_t* target = shared + (slab * (kTokens / kPageTokens) + part) * kSlabBytes;
      const uint32_t bytes = static_cast<uint32_t>(valid) * kRowBytes;
      if (bytes > 0) BulkCopy(target, from + slab * kSlabBytes, bytes, barrier);
      if (bytes < kSlabBytes) {
        BulkCopy(target + bytes, p.workspace.zeros, kSlabBytes - bytes, barrier);
      }
    }
  }
};

}  // namespace lockstep::kernels::cuda
