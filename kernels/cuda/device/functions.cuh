#pragma once

#include <cuda_runtime.h>

#include "common/base/philox.h"
#include "kernels/order/functions.h"

// The contract's functions in fp32, with the bits of every other backend. Products and sums outside
// of __fmaf_rn are rounded one by one: these files are built with -fmad=false.
namespace lockstep::kernels::cuda {

constexpr float kInfinity = __builtin_huge_valf();
constexpr float kHighest = 3.40282346638528859812e+38f;  // The largest finite number.

// 2^x for x <= 127; exactly 0 below -126, exactly 1 at 0.
__device__ __forceinline__ float Exp2(float x) {
  using P = order::Exp2Polynomial;
  const bool underflow = x < P::kUnderflow;
  const float clamped = underflow ? P::kUnderflow : x;
  const float rounded = clamped + order::kRounder;
  const float f = clamped - (rounded - order::kRounder);
  float p = P::kC6;
  p = __fmaf_rn(p, f, P::kC5);
  p = __fmaf_rn(p, f, P::kC4);
  p = __fmaf_rn(p, f, P::kC3);
  p = __fmaf_rn(p, f, P::kC2);
  p = __fmaf_rn(p, f, P::kC1);
  p = __fmaf_rn(p, f, 1.0f);
  // The rounder's own bits leave by the shift.
  const float power = __uint_as_float((__float_as_uint(rounded) << 23) + (127u << 23));
  return underflow ? 0.0f : p * power;
}

// exp(z - max).
__device__ __forceinline__ float ExpBelowMax(float z, float max) {
  return Exp2((z - max) * order::kLog2E);
}

// log(1 + f) + e * ln 2.
__device__ __forceinline__ float LogOfParts(float f, float e) {
  using P = order::LogPolynomial;
  const float z = f * f;
  float p = P::kC11;
  p = p * f + P::kC10;
  p = p * f + P::kC9;
  p = p * f + P::kC8;
  p = p * f + P::kC7;
  p = p * f + P::kC6;
  p = p * f + P::kC5;
  p = p * f + P::kC4;
  p = p * f + P::kC3;
  float y = f * z * p;
  y = y + e * P::kLn2Low;
  y = y - z * 0.5f;
  y = f + y;
  return y + e * P::kLn2High;
}

// x = (1 + f) * 2^e with 1 + f in [sqrt(1/2), sqrt(2)), for positive normal x.
__device__ __forceinline__ void SplitForLog(float x, float& f, float& e) {
  const int32_t bits = __float_as_int(x);
  const int32_t exponent = (bits - order::LogPolynomial::kSqrtHalfBits) >> 23;
  f = __int_as_float(bits - static_cast<int32_t>(static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  e = __int2float_rn(exponent);
}

// Natural logarithm of a positive normal number.
__device__ __forceinline__ float Log(float x) {
  float f, e;
  SplitForLog(x, f, e);
  return LogOfParts(f, e);
}

// RN(2x + 1) * 2^-33: both halves are exact, so there is one rounding.
__device__ __forceinline__ float UnitInterval(uint32_t x) {
  const float high = __uint2float_rn(x >> 16) * 0x1p17f;
  const float low = __uint2float_rn(2 * (x & 0xFFFF) + 1);
  return (high + low) * 0x1p-33f;
}

// Standard Gumbel variate of 32 random bits; finite for all of them.
__device__ __forceinline__ float GumbelNoise(uint32_t x) {
  const float u = UnitInterval(x);
  float f, e;
  if (u <= 0.5f) {
    SplitForLog(u, f, e);
  } else {
    const float minus_w = -UnitInterval(~x);
    const bool near = minus_w >= order::LogPolynomial::kNearOne;
    f = near ? minus_w : 1.0f + minus_w * 2.0f;
    e = near ? 0.0f : -1.0f;
  }
  return -Log(-LogOfParts(f, e));
}

// Not below GumbelNoise(x), and hardly above it where it is large: -log(u) >= 1 - u, and the margin
// covers the approximate logarithm and all roundings. For words that cannot win a draw.
__device__ __forceinline__ float GumbelBound(uint32_t x) {
  float log2;
  asm("lg2.approx.f32 %0, %1;" : "=f"(log2) : "f"(__uint2float_rz(~x)));
  // 32 ln 2 = 22.1807; the rest is margin. Finite, so that it can be added to minus infinity.
  return fminf(__fmaf_rn(log2, -0x1.62e43p-1f, 0x1.63p+4f), 64.0f);
}

// Every x with GumbelNoise(x) >= -distance has ~x up to this: -log(u) >= 1 - u, with a margin of
// 0.007 in the noise.
__device__ __forceinline__ uint32_t ComplementLimit(float distance) {
  float limit;
  asm("ex2.approx.f32 %0, %1;"
      : "=f"(limit)
      : "f"(__fmaf_rn(distance, order::kLog2E, 0x1.0028f6p+5f)));  // 32.01
  return __float2uint_ru(limit);
}

// The four random words of ids 4 * quad and following at a position.
__device__ __forceinline__ std::array<uint32_t, 4> RandomWords(uint64_t seed, uint32_t position,
                                                               uint32_t quad) {
  return base::Philox4x32({position, quad, 0, 0},
                          {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace lockstep::kernels::cuda
