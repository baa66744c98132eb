// Passes over one row of logits, shared by Sample and Logprobs so that both see the same numbers.
#if defined(LOCKSTEP_KERNELS_CPU_VOCABULARY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_VOCABULARY_INL_H_
#undef LOCKSTEP_KERNELS_CPU_VOCABULARY_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_VOCABULARY_INL_H_
#endif

#include <limits>

#include "common/base/philox.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kHighest = std::numeric_limits<float>::max();

// No NaN and no +infinity among n values; -infinity is a ban and allowed.
HWY_INLINE bool AllBelowInfinity(const float* z, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) {
    if (!hn::AllTrue(F(), hn::Lt(LoadFirst(z + i, n - i), Splat(kInfinity)))) return false;
  }
  return true;
}

// The exact maximum, a zero made positive so that its sign cannot depend on the order of search.
HWY_INLINE float RowMax(const float* z, size_t n) {
  VF max = Splat(-kInfinity);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) max = MaxOf(max, hn::LoadU(F(), z + i));
  float result = MaxOfLanes(max);
  for (; i < n; ++i) result = result < z[i] ? z[i] : result;
  return result + 0.0f;
}

// RN(z / temperature). What overflows becomes the largest finite number of its sign, so that an
// extreme temperature makes ties, not infinities; zeros become positive.
HWY_INLINE void ScaleRow(const float* z, size_t n, float temperature, float* scaled) {
  const VF t = Splat(temperature);
  for (size_t i = 0; i < n; i += kLanes) {
    const VF v = LoadFirst(z + i, n - i);
    VF q = hn::Add(hn::Div(v, t), hn::Zero(F()));
    q = hn::IfThenElse(hn::Lt(Splat(kHighest), q), Splat(kHighest), q);
    q = hn::IfThenElse(hn::And(hn::Lt(q, Splat(-kHighest)), hn::Ge(v, Splat(-kHighest))),
                       Splat(-kHighest), q);
    StoreFirst(q, scaled + i, n - i);
  }
}

// exp(z - max), relative to the exact maximum: the largest is exactly 1. In two roundings rather
// than one FMA with a rounded max * log2(e), which at a low temperature is off by whole units.
HWY_INLINE VF ExpBelowMax(VF z, VF max) { return Exp2(hn::Mul(hn::Sub(z, max), Splat(kLog2E))); }

// T over exp(z - max); stores the exponentials when `exponentials` is not null.
HWY_INLINE float SumOfExponentials(const float* z, size_t n, float max, float* exponentials) {
  const VF max_v = Splat(max);
  return TreeOver(n, [&](size_t i) HWY_ATTR {
    VF e = ExpBelowMax(LoadFirst(z + i, n - i), max_v);
    if (n - i < kLanes) e = hn::IfThenElseZero(hn::FirstN(F(), n - i), e);
    if (exponentials != nullptr) StoreFirst(e, exponentials + i, n - i);
    return e;
  });
}

// Random words of the 4 * kLanes ids from 4 * quad on: Philox with counter (position, id / 4, 0,
// 0), word id % 4.
HWY_INLINE void RandomWords(uint64_t key, uint32_t position, uint32_t quad, uint32_t* words) {
  const uint32_t key0 = static_cast<uint32_t>(key);
  const uint32_t key1 = static_cast<uint32_t>(key >> 32);
#if HWY_TARGET == HWY_SCALAR
  const auto random = base::Philox4x32({position, quad, 0, 0}, {key0, key1});
  for (size_t word = 0; word < 4; ++word) words[word] = random[word];
#else
  const hn::Repartition<uint64_t, U> wide;
  // The high and low halves of the 64-bit products of all lanes.
  const auto multiply = [&](VU a, VU b, VU& high, VU& low) HWY_ATTR {
    const auto even = hn::MulEven(a, b);
    const auto odd = hn::MulEven(hn::BitCast(U(), hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
    high = hn::OddEven(hn::BitCast(U(), odd), hn::BitCast(U(), hn::ShiftRight<32>(even)));
    low = hn::OddEven(hn::BitCast(U(), hn::ShiftLeft<32>(odd)), hn::BitCast(U(), even));
  };
  VU c0 = hn::Set(U(), position);
  VU c1 = hn::Iota(U(), quad);
  VU c2 = hn::Zero(U());
  VU c3 = hn::Zero(U());
  for (uint32_t round = 0; round < 10; ++round) {
    VU high0, low0, high1, low1;
    multiply(c0, hn::Set(U(), 0xD2511F53u), high0, low0);
    multiply(c2, hn::Set(U(), 0xCD9E8D57u), high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(U(), key0 + round * 0x9E3779B9u));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(U(), key1 + round * 0xBB67AE85u));
    c1 = low1;
    c3 = low0;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, U(), words);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_KERNELS_CPU_VOCABULARY_INL_H_
