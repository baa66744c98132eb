// RMSNorm. x, y: [rows, width] fp32. Order of the sum of squares: T over the width.
// Placement-invariant.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/row_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

void NormalizeRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    NormalizeVector(static_cast<const float*>(args.x) + static_cast<size_t>(row) * args.x_stride,
                    args.weight, args.epsilon, static_cast<size_t>(args.width),
                    static_cast<float*>(args.y) + static_cast<size_t>(row) * args.y_stride);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(NormalizeRows);

void RmsNorm(OpContext& context, const RmsNormArgs& args) {
  const RowParts parts = {.rows = args.rows, .width = args.width, .elements_per_thread = 1 << 14};
  ForRowParts(context.pool, parts, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormalizeRows)(args, begin, end);
  });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
