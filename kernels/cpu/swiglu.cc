// SwiGLU. gate_up: [rows, 2 * width] fp32, y: [rows, width]. y = silu(g) * u with
// silu(g) = g / (1 + exp(-g)), every operation rounded; no reduction. Placement-invariant.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/row_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

void SwiGluRows(const SwiGluArgs& args, int64_t begin, int64_t end) {
  const size_t width = static_cast<size_t>(args.width);
  for (int64_t row = begin; row < end; ++row) {
    const float* gate =
        static_cast<const float*>(args.gate_up) + static_cast<size_t>(row) * 2 * width;
    const float* up = gate + width;
    float* y = static_cast<float*>(args.y) + static_cast<size_t>(row) * width;
    for (size_t i = 0; i < width; i += kLanes) {
      const VF g = LoadFirst(gate + i, width - i);
      const VF silu = hn::Div(g, hn::Add(Splat(1.0f), Exp(hn::Neg(g))));
      StoreFirst(hn::Mul(silu, LoadFirst(up + i, width - i)), y + i, width - i);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(SwiGluRows);

void SwiGlu(OpContext& context, const SwiGluArgs& args) {
  const RowParts parts = {.rows = args.rows, .width = args.width, .elements_per_thread = 1 << 12};
  ForRowParts(context.pool, parts, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwiGluRows)(args, begin, end);
  });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
