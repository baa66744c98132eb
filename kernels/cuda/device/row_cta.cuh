#pragma once

#include "kernels/cuda/device/vocabulary.cuh"

namespace lockstep::kernels::cuda {

// A row of logits that one CTA holds in its own part of global memory, since no shared memory has
// room for a vocabulary. The verbs of ClusterRow.
struct CtaRow {
  // Sums of 2^18 limbs, one for each id that a row can have (kPortableVocabularyMax), fit 32 bits.
  static constexpr int kLimbBits = 14;
  struct Loading {};

  static __device__ __forceinline__ int Rank() { return 0; }
  static __device__ __forceinline__ int Ctas() { return 1; }
  static __device__ __forceinline__ void Sync() { __syncthreads(); }
  template <typename T>
  static __device__ __forceinline__ const T* Remote(const T* shared, int /*rank*/) {
    return shared;
  }

  template <typename Look>
  static __device__ __forceinline__ void Load(const float* row, const RowPart& part, Loading&,
                                              const Look& look) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = part.count + thread; i < part.ids; i += kVocabularyThreads) {
      part.z[i] = -kInfinity;
    }
    // Rows of a vocabulary that is no multiple of 4 start and end anywhere.
    const bool whole = reinterpret_cast<uintptr_t>(row) % sizeof(float4) == 0;
    const int quads = whole ? part.count / 4 : 0;
#pragma unroll 4
    for (int i = thread; i < quads; i += kVocabularyThreads) {
      const float4 z = __ldg(reinterpret_cast<const float4*>(row) + i);
      look(z.x);
      look(z.y);
      look(z.z);
      look(z.w);
      reinterpret_cast<float4*>(part.z)[i] = z;
    }
    for (int i = 4 * quads + thread; i < part.count; i += kVocabularyThreads) {
      const float z = __ldg(row + i);
      look(z);
      part.z[i] = z;
    }
  }
};

}  // namespace lockstep::kernels::cuda
