// RMSNorm of one vector, for RmsNorm and for the q and k heads of QkvPrepare.
#if defined(LOCKSTEP_KERNELS_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_CPU_NORM_INL_H_
#undef LOCKSTEP_KERNELS_CPU_NORM_INL_H_
#else
#define LOCKSTEP_KERNELS_CPU_NORM_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// y = w * (x * r), r = 1 / sqrt(T(x * x) * (1 / width) + epsilon), every operation rounded. `y`
// may be `x`.
HWY_INLINE void NormalizeVector(const float* x, const float* weight, float epsilon, size_t width,
                                float* y) {
  const float squares = TreeOver(width, [&](size_t i) HWY_ATTR {
    const VF v = LoadFirst(x + i, width - i);
    return hn::Mul(v, v);
  });
  const float mean = squares * (1.0f / static_cast<float>(width));
  const VF r = hn::Set(F(), 1.0f / std::sqrt(mean + epsilon));
  for (size_t i = 0; i < width; i += kLanes) {
    const VF h = hn::Mul(LoadFirst(x + i, width - i), r);
    StoreFirst(hn::Mul(LoadFirst(weight + i, width - i), h), y + i, width - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_KERNELS_CPU_NORM_INL_H_
