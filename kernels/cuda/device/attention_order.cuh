#pragma once

#include <cuda_runtime.h>

// The arithmetic of attention that decides bits, apart from the products: every kernel calls these
// and writes none of it itself.
namespace lockstep::kernels::cuda {

constexpr float kMinusInfinity = -__builtin_huge_valf();

__device__ __forceinline__ float Exp2Approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What is subtracted in the exponent. A row that has seen no key has no maximum: its scores are all
// masked, and any finite number makes their probabilities 0.
__device__ __forceinline__ float ScaledMax(float max, float scale) {
  return max == kMinusInfinity ? 0.0f : __fmul_rn(max, scale);
}

// 0 for a masked score, which is minus infinity.
__device__ __forceinline__ float Probability(float score, float scale, float scaled_max) {
  return Exp2Approximate(__fmaf_rn(score, scale, -scaled_max));
}

// Takes sums relative to `old_max` to those relative to `new_max`; 1 exactly where they are equal.
__device__ __forceinline__ float RescaleFactor(float old_max, float new_max, float scale) {
  if (old_max == new_max) return 1.0f;
  return Exp2Approximate(__fsub_rn(__fmul_rn(old_max, scale), __fmul_rn(new_max, scale)));
}

// A later split joins those before it: each sum becomes fma(split, factors.split, merged *
// factors.merged).
struct MergeFactors {
  float max;
  float merged;
  float split;
};

__device__ __forceinline__ MergeFactors MergeFactorsOf(float merged_max, float split_max,
                                                       float scale) {
  const float max = fmaxf(merged_max, split_max);
  return {max, RescaleFactor(merged_max, max, scale), RescaleFactor(split_max, max, scale)};
}

__device__ __forceinline__ float Merged(const MergeFactors& factors, float merged, float split) {
  return __fmaf_rn(split, factors.split, __fmul_rn(merged, factors.merged));
}

// A zero result is positive: whether a vanished negative sum met the zeros of masked keys depends
// on the kernel, and must not show.
__device__ __forceinline__ float Normalised(float sum, float row_sum) {
  return __fadd_rn(__fdiv_rn(sum, row_sum), 0.0f);
}

// Maximum over the four lanes that share a row of a fragment.
__device__ __forceinline__ float MaxOfQuad(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 2));
}

}  // namespace lockstep::kernels::cuda
