// Vector primitives of the CPU backend, compiled once per instruction set by Highway. Everything
// here gives the same bits at any vector width; that is what this file is for.
#if defined(LOCKSTEP_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_SIMD_INL_H_
#undef LOCKSTEP_KERNELS_CPU_SIMD_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_SIMD_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using VF = hn::Vec<F>;
inline constexpr size_t kLanes = hn::MaxLanes(F());

// a * b + c with one rounding. Highway's own MulAdd rounds twice on the scalar target.
HWY_INLINE VF Fma(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(F(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#else
  return hn::MulAdd(a, b, c);
#endif
}

// The larger of both; keeps a NaN of `a` on every target, which Highway's Max does not promise.
HWY_INLINE VF MaxOf(VF a, VF b) { return hn::IfThenElse(hn::Lt(a, b), b, a); }

HWY_INLINE float MaxOfLanes(VF v) { return hn::GetLane(hn::MaxOfLanes(F(), v)); }

// fp32 values of kLanes stored weights.
HWY_INLINE VF LoadWeights(const float* HWY_RESTRICT w) { return hn::LoadU(F(), w); }
HWY_INLINE VF LoadWeights(const uint16_t* HWY_RESTRICT w) {
  const hn::RebindToUnsigned<F> du;
  const hn::Rebind<uint16_t, F> du16;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, w))));
}

// Lanes [0, count) of memory, zero above; reads nothing beyond count.
HWY_INLINE VF LoadFirst(const float* HWY_RESTRICT p, size_t count) {
  if (count >= kLanes) return hn::LoadU(F(), p);
#if HWY_TARGET == HWY_SCALAR
  return hn::Zero(F());
#else
  return hn::MaskedLoad(hn::FirstN(F(), count), F(), p);
#endif
}
HWY_INLINE void StoreFirst(VF v, float* HWY_RESTRICT p, size_t count) {
  if (count >= kLanes) {
    hn::StoreU(v, F(), p);
  } else {
    hn::BlendedStore(v, hn::FirstN(F(), count), F(), p);
  }
}

// One level of T over the 2 * kLanes consecutive values (low, high).
HWY_INLINE VF PairSum(VF low, VF high) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Add(low, high);
#else
  return hn::Add(hn::ConcatEven(F(), high, low), hn::ConcatOdd(F(), high, low));
#endif
}

// The remaining levels of T inside one vector.
HWY_INLINE float TreeOfLanes(VF v) {
  for (size_t lanes = kLanes; lanes > 1; lanes /= 2) v = PairSum(v, hn::Zero(F()));
  return hn::GetLane(v);
}

// T over values that come in ascending order, one vector at a time: a binary counter of finished
// subtrees. Values must not be -0: padding adds +0, and -0 + 0 is +0.
class RowTree {
 public:
  HWY_INLINE void Push(VF v) { Push(v, 0); }
  // Four consecutive vectors at once: two levels without touching the counter.
  HWY_INLINE void Push4(VF a, VF b, VF c, VF d) { Push(PairSum(PairSum(a, b), PairSum(c, d)), 2); }

  HWY_INLINE float Finish() {
    if (count_ == 0) return 0;
    const int top = std::bit_width(count_) - 1;
    VF sum = hn::Load(F(), stack_ + static_cast<size_t>(top) * kLanes);
    if (!std::has_single_bit(count_)) {
      sum = hn::Zero(F());
      for (int level = 0; level <= top; ++level) {
        sum = (count_ >> level & 1)
                  ? PairSum(hn::Load(F(), stack_ + static_cast<size_t>(level) * kLanes), sum)
                  : PairSum(sum, hn::Zero(F()));
      }
    }
    return TreeOfLanes(sum);
  }

 private:
  HWY_INLINE void Push(VF v, int level) {
    uint32_t carry = count_ >> level;
    count_ += 1u << level;
    for (; carry & 1; carry >>= 1, ++level) {
      v = PairSum(hn::Load(F(), stack_ + static_cast<size_t>(level) * kLanes), v);
    }
    hn::Store(v, F(), stack_ + static_cast<size_t>(level) * kLanes);
  }

  HWY_ALIGN float stack_[32 * kLanes];
  uint32_t count_ = 0;
};

// T over n values, where load(i) gives the values i .. i + kLanes - 1, zero from n on.
template <class Load>
HWY_INLINE float TreeOver(size_t n, const Load& load) {
  RowTree tree;
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    tree.Push4(load(i), load(i + kLanes), load(i + 2 * kLanes), load(i + 3 * kLanes));
  }
  for (; i < n; i += kLanes) tree.Push(load(i));
  return tree.Finish();
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_KERNELS_CPU_SIMD_INL_H_
