#pragma once

#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/wgmma_sm90.cuh"
#include "kernels/cuda/kv_layout.h"

// The two products of a prefill block, by Hopper's warpgroup instructions. Sums run over k-groups
// of 16 in ascending order. A tile in shared memory is [slab][kBlock tokens][64 dims], swizzled.
// Begin... starts a product, Finish waits for it; between them nobody may touch its registers.
namespace lockstep::kernels::cuda {

// 64 rows by four warps.
template <int kHeadDim, int kBlock, int kWarpgroups>
struct WgmmaProducts {
  static constexpr bool kAsynchronous = true;
  static constexpr int kCopyThreads = 128;  // A warpgroup, of which one thread copies.
  static constexpr int kReaders = 1;        // Of a warp, for the tensor core that reads a stage.
  static constexpr int kStages = kBlock == 64 ? 3 : 2;
  static constexpr uint32_t kSlabBytes = kBlock * kSlabDims * 2;

  // Orders what a thread stored to shared memory before products that read it.
  static __device__ __forceinline__ void FenceShared() { FenceAsyncProxy(); }

  // Registers of the warpgroup that copies go to those that compute, where there are two.
  static __device__ __forceinline__ void GiveUpRegisters() {
    if constexpr (kWarpgroups > 1) cuda::GiveUpRegisters<24>();
  }
  static __device__ __forceinline__ void TakeRegisters() {
    if constexpr (kWarpgroups > 1) cuda::TakeRegisters<240>();
  }

  // s = q * keys.
  static __device__ __forceinline__ void BeginScores(float (&s)[kBlock / 8][4],
                                                     const uint32_t (&q)[kHeadDim / 16][4],
                                                     uint32_t keys, int) {
    WgmmaFenceSums(s);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      WgmmaM64K16<false>(s, q[k], SwizzledDescriptor(keys + k / 4 * kSlabBytes + k % 4 * 32, 16),
                         k > 0);
    }
    WgmmaCommit();
  }

  // o += p * values, l += p * ones; from zero unless `accumulate`.
  static __device__ __forceinline__ void BeginValues(float (&o)[kHeadDim / 8][4], float (&l)[1][4],
                                                     const uint32_t (&p)[kBlock / 16][4],
                                                     uint32_t values, uint32_t ones,
                                                     bool accumulate, int) {
    WgmmaFenceSums(o);
    WgmmaFenceSums(l);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      WgmmaM64K16<true>(o, p[k], SwizzledDescriptor(values + k * 2048, kSlabBytes),
                        accumulate || k > 0);
      WgmmaM64K16<false>(l, p[k], PlainDescriptor(ones), accumulate || k > 0);
    }
    WgmmaCommit();
  }

  // Waits for all products but the `kLater` begun last.
  template <int kLater, int kTiles>
  static __device__ __forceinline__ void Finish(float (&sums)[kTiles][4]) {
    WgmmaWait<kLater>();
    WgmmaFenceSums(sums);
  }
};

}  // namespace lockstep::kernels::cuda
