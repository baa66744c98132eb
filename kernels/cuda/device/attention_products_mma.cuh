#pragma once

#include "kernels/cuda/device/primitive/mma.cuh"
#include "kernels/cuda/kv_layout.h"

// The two products of a prefill block by one warp's instructions, which any GPU since Ampere has.
// The verbs, fragments and bits of WgmmaProducts.
namespace lockstep::kernels::cuda {

// One warp, 16 rows.
template <int kHeadDim, int kBlock>
struct MmaProducts {
  static constexpr bool kAsynchronous = false;
  static constexpr int kCopyThreads = 32;
  static constexpr int kReaders = 32;  // Lanes that load from a stage.
  // The smallest GPUs give a CTA 99 KiB: a block's keys, its values, and sums of splits.
  static constexpr int kStages = kBlock == 64 ? 2 : 1;
  static constexpr uint32_t kSlabBytes = kBlock * kSlabDims * 2;

  static __device__ __forceinline__ void FenceShared() {}
  static __device__ __forceinline__ void GiveUpRegisters() {}
  static __device__ __forceinline__ void TakeRegisters() {}

  static __device__ __forceinline__ void BeginScores(float (&s)[kBlock / 8][4],
                                                     const uint32_t (&q)[kHeadDim / 16][4],
                                                     uint32_t keys, int lane) {
    const int key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int n = 0; n < kBlock / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
    }
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const int chunk = (k % 4 * 2 + lane / 8 % 2) ^ (key % 8);
#pragma unroll
      for (int n = 0; n < kBlock / 16; ++n) {
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
