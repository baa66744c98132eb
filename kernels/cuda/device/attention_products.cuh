#pragma once

#include "kernels/cuda/device/primitive/mma.cuh"
#include "kernels/cuda/device/primitive/wgmma_sm90.cuh"
#include "kernels/cuda/kv_layout.h"

// The two products of a prefill block, by two instruction sets with the same fragments and the same
// bits: sums run over k-groups of 16 in ascending order. A tile in shared memory is
// [slab][kBlock tokens][64 dims], swizzled. Begin... starts a product, Finish waits for it;
// between them nobody may touch its registers.
namespace lockstep::kernels::cuda {

// Hopper's warpgroup products: asynchronous, 64 rows by four warps.
template <int kHeadDim, int kBlock>
struct WgmmaProducts {
  static constexpr uint32_t kSlabBytes = kBlock * kSlabDims * 2;

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

// One warp, 16 rows, any GPU since Ampere. Synchronous.
template <int kHeadDim, int kBlock>
struct MmaProducts {
  static constexpr uint32_t kSlabBytes = kBlock * kSlabDims * 2;

  static __device__ __forceinline__ void BeginScores(float (&s)[kBlock / 8][4],
                                                     const uint32_t (&q)[kHeadDim / 16][4],
                                                     uint32_t keys, int lane) {
    const int key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int n = 0; n < kBlock / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[2 * n][i] = s[2 * n + 1][i] = 0;
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) {
        const int chunk = (k % 4 * 2 + lane / 8 % 2) ^ (key % 8);
        uint32_t b[4];
        LoadMatrices(b, keys + k / 4 * kSlabBytes + (16 * n + key) * 128 + chunk * 16);
        MmaM16N8K16(s[2 * n], q[k], b[0], b[1]);
        MmaM16N8K16(s[2 * n + 1], q[k], b[2], b[3]);
      }
    }
  }

  static __device__ __forceinline__ void BeginValues(float (&o)[kHeadDim / 8][4], float (&l)[1][4],
                                                     const uint32_t (&p)[kBlock / 16][4],
                                                     uint32_t values, uint32_t, bool accumulate,
                                                     int lane) {
    if (!accumulate) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        l[0][i] = 0;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) o[n][i] = 0;
      }
    }
    const int key = lane % 16;
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        const int chunk = (n % 4 * 2 + lane / 16) ^ (key % 8);
        uint32_t b[4];
        LoadMatricesTransposed(b, values + n / 4 * kSlabBytes + (16 * k + key) * 128 + chunk * 16);
        MmaM16N8K16(o[2 * n], p[k], b[0], b[1]);
        MmaM16N8K16(o[2 * n + 1], p[k], b[2], b[3]);
      }
      MmaM16N8K16(l[0], p[k], kOnesBf16, kOnesBf16);
    }
  }

  template <int kLater, int kTiles>
  static __device__ __forceinline__ void Finish(float (&)[kTiles][4]) {}
};

}  // namespace lockstep::kernels::cuda
