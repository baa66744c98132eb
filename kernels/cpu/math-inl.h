// Exponentials, logarithms and Gumbel noise of the numerics contract, as polynomials whose
// coefficients and order of operations are part of it.
#if defined(LOCKSTEP_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_MATH_INL_H_
#undef LOCKSTEP_KERNELS_CPU_MATH_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_MATH_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"
#include "kernels/order/functions.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;
using VU = hn::Vec<U>;

using order::Exp2Polynomial;
using order::kLog2E;
using order::kRounder;
using order::LogPolynomial;

HWY_INLINE VF Splat(float value) { return hn::Set(F(), value); }

// 2^n of the integer that `rounded` = n + kRounder holds, plus `shift`, as a float; garbage for a
// NaN, which the product with it hides.
HWY_INLINE VF PowerOfTwo(VF rounded, int shift) {
  const auto n = hn::Sub(hn::BitCast(I(), rounded), hn::BitCast(I(), Splat(kRounder)));
  return hn::BitCast(F(), hn::ShiftLeft<23>(hn::Add(n, hn::Set(I(), 127 + shift))));
}

// 2^x for x <= 127; exactly 0 below -126, exactly 1 at 0, NaN of NaN.
HWY_INLINE VF Exp2(VF x) {
  const VF low = Splat(Exp2Polynomial::kUnderflow);
  const auto underflow = hn::Lt(x, low);
  const VF clamped = hn::IfThenElse(underflow, low, x);
  const VF rounded = hn::Add(clamped, Splat(kRounder));
  const VF f = hn::Sub(clamped, hn::Sub(rounded, Splat(kRounder)));  // Exact, in [-1/2, 1/2].
  VF p = Splat(Exp2Polynomial::kC6);
  p = Fma(p, f, Splat(Exp2Polynomial::kC5));
  p = Fma(p, f, Splat(Exp2Polynomial::kC4));
  p = Fma(p, f, Splat(Exp2Polynomial::kC3));
  p = Fma(p, f, Splat(Exp2Polynomial::kC2));
  p = Fma(p, f, Splat(Exp2Polynomial::kC1));
  p = Fma(p, f, Splat(1.0f));
  return hn::IfThenZeroElse(underflow, hn::Mul(p, PowerOfTwo(rounded, 0)));
}

// e^x; exactly 0 below -86, infinite above 88.73, NaN of NaN.
HWY_INLINE VF Exp(VF x) {
  const VF low = Splat(-86.0f);  // Where halves of results are still normal.
  const VF high = Splat(89.0f);
  const auto underflow = hn::Lt(x, low);
  VF clamped = hn::IfThenElse(underflow, low, x);
  clamped = hn::IfThenElse(hn::Lt(high, clamped), high, clamped);
  const VF rounded = Fma(clamped, Splat(kLog2E), Splat(kRounder));
  const VF n = hn::Sub(rounded, Splat(kRounder));
  VF r = Fma(n, Splat(-0x1.62e43p-1f), clamped);
  r = Fma(n, Splat(0x1.05c61p-29f), r);  // In [-ln 2 / 2, ln 2 / 2].
  VF p = Splat(0x1.6ae688p-10f);
  p = Fma(p, r, Splat(0x1.126832p-7f));
  p = Fma(p, r, Splat(0x1.555826p-5f));
  p = Fma(p, r, Splat(0x1.555418p-3f));
  p = Fma(p, r, Splat(0x1.fffffcp-2f));
  p = Fma(p, r, Splat(1.0f));
  p = Fma(p, r, Splat(1.0f));
  // In two steps, because n = 128 has no power of two of its own.
  const VF result = hn::Mul(hn::Mul(p, PowerOfTwo(rounded, -1)), Splat(2.0f));
  return hn::IfThenZeroElse(underflow, result);
}

// log(1 + f) + e * ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1]. Products and sums are rounded
// separately, without FMA, so that a twin in any language can follow.
HWY_INLINE VF LogOfParts(VF f, VF e) {
  const VF z = hn::Mul(f, f);
  VF p = Splat(LogPolynomial::kC11);
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC10));
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC9));
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC8));
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC7));
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC6));
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC5));
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC4));
  p = hn::Add(hn::Mul(p, f), Splat(LogPolynomial::kC3));
  VF y = hn::Mul(hn::Mul(f, z), p);
  y = hn::Add(y, hn::Mul(e, Splat(LogPolynomial::kLn2Low)));
  y = hn::Sub(y, hn::Mul(z, Splat(0.5f)));
  y = hn::Add(f, y);
  return hn::Add(y, hn::Mul(e, Splat(LogPolynomial::kLn2High)));
}

// x = (1 + f) * 2^e with 1 + f in [sqrt(1/2), sqrt(2)), for positive normal x.
HWY_INLINE void SplitForLog(VF x, VF& f, VF& e) {
  const auto bits = hn::BitCast(I(), x);
  const auto exponent =
      hn::ShiftRight<23>(hn::Sub(bits, hn::Set(I(), LogPolynomial::kSqrtHalfBits)));
  f = hn::Sub(hn::BitCast(F(), hn::Sub(bits, hn::ShiftLeft<23>(exponent))), Splat(1.0f));
  e = hn::ConvertTo(F(), exponent);
}

// Natural logarithm of a positive normal number.
HWY_INLINE VF Log(VF x) {
  VF f, e;
  SplitForLog(x, f, e);
  return LogOfParts(f, e);
}

HWY_INLINE float LogOf(float x) { return hn::GetLane(Log(Splat(x))); }

// RN(2x + 1) * 2^-33, in (0, 1]. Both halves are exact, so there is one rounding.
HWY_INLINE VF UnitInterval(VU x) {
  const VU high = hn::ShiftRight<16>(x);
  const VU low = hn::Add(hn::ShiftLeft<1>(hn::And(x, hn::Set(U(), 0xFFFF))), hn::Set(U(), 1));
  const VF high_f = hn::Mul(hn::ConvertTo(F(), hn::BitCast(I(), high)), Splat(0x1p17f));
  const VF low_f = hn::ConvertTo(F(), hn::BitCast(I(), low));
  return hn::Mul(hn::Add(high_f, low_f), Splat(0x1p-33f));
}

// Standard exponential variates -log(u) of 32 random bits each, precise at both ends: above 1/2
// the distance w to 1 is used instead of u, as -log1p(-w).
HWY_INLINE VF ExponentialNoise(VU random) {
  const VF u = UnitInterval(random);
  const VF w = UnitInterval(hn::Not(random));
  VF f, e;
  SplitForLog(u, f, e);
  // log1p(-w) for w < 1/2: either f = -w as it is, or 1 - w = (2 - 2w) / 2, both exact.
  const VF minus_w = hn::Neg(w);
  const auto near = hn::Ge(minus_w, Splat(LogPolynomial::kNearOne));
  const VF f1 = hn::IfThenElse(near, minus_w, hn::Add(Splat(1.0f), hn::Mul(minus_w, Splat(2.0f))));
  const VF e1 = hn::IfThenElse(near, hn::Zero(F()), Splat(-1.0f));
  const auto lower_half = hn::Le(u, Splat(0.5f));
  return hn::Neg(LogOfParts(hn::IfThenElse(lower_half, f, f1), hn::IfThenElse(lower_half, e, e1)));
}

// Standard Gumbel variates -log(-log(u)); finite for every input.
HWY_INLINE VF GumbelNoise(VU random) { return hn::Neg(Log(ExponentialNoise(random))); }

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_KERNELS_CPU_MATH_INL_H_
