// Per-head RMSNorm of q and k, rotary embedding, and the write of k and v into the KV pool.
// qkv: [rows, (q_heads + 2 kv_heads) * head_dim] fp32. out = RN(x * cos) + RN(rot(x) * sin), each
// operation rounded. Rows are independent: placement-invariant.
#include "common/base/check.h"
#include "kernels/cpu/cpu_kv_cache.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/row_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/qkv_prepare.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// Rotates (x[i], x[half + i]) by the row's angles, in place.
HWY_INLINE void Rotate(float* x, const float* cos, const float* sin, size_t half) {
  for (size_t i = 0; i < half; i += kLanes) {
    const size_t n = half - i;
    const VF x1 = LoadFirst(x + i, n);
    const VF x2 = LoadFirst(x + half + i, n);
    const VF c = LoadFirst(cos + i, n);
    const VF s = LoadFirst(sin + i, n);
    StoreFirst(hn::Sub(hn::Mul(x1, c), hn::Mul(x2, s)), x + i, n);
    StoreFirst(hn::Add(hn::Mul(x2, c), hn::Mul(x1, s)), x + half + i, n);
  }
}

void PrepareRow(const QkvPrepareArgs& args, const CpuKvCache& kv, size_t row, int32_t sequence) {
  const size_t dim = static_cast<size_t>(args.head_dim);
  const size_t q_heads = static_cast<size_t>(args.q_heads);
  const size_t kv_heads = static_cast<size_t>(args.kv_heads);
  const size_t position = static_cast<size_t>(args.inputs.positions[row]);
  const float* cos = args.rope_table + position * dim;
  const float* sin = cos + dim / 2;
  float* heads = static_cast<float*>(args.qkv) + row * (q_heads + 2 * kv_heads) * dim;
  for (size_t h = 0; h < q_heads + kv_heads; ++h) {
    float* x = heads + h * dim;
    const float* norm = h < q_heads ? args.q_norm : args.k_norm;
    if (norm != nullptr) NormalizeVector(x, norm, args.epsilon, dim, x);
    Rotate(x, cos, sin, dim / 2);
  }
  constexpr size_t kTokens = CpuKvCache::kBlockTokens;
  const int block =
      args.inputs
          .block_table[static_cast<size_t>(sequence) * static_cast<size_t>(args.shape.blocks_max) +
                       position / kTokens];
  const size_t slot = position % kTokens;
  for (size_t h = 0; h < kv_heads; ++h) {
    const float* k = heads + (q_heads + h) * dim;
    const float* v = k + kv_heads * dim;
    float* keys = kv.keys(args.layer, static_cast<int>(h), block) + slot;
    float* values = kv.values(args.layer, static_cast<int>(h), block) + slot * dim;
    for (size_t d = 0; d < dim; ++d) {
      keys[d * kTokens] = k[d];
      values[d] = v[d];
    }
  }
}

void PrepareRows(const QkvPrepareArgs& args, const CpuKvCache& kv, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int32_t sequence = args.inputs.row_sequence[row];
    if (sequence >= 0) PrepareRow(args, kv, static_cast<size_t>(row), sequence);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(PrepareRows);

void QkvPrepare(OpContext& context, const QkvPrepareArgs& args) {
  const auto& kv = static_cast<const CpuKvCache&>(*args.kv);
  LOCKSTEP_CHECK(args.head_dim % 2 == 0 && kv.shape().head_dim == args.head_dim &&
                 kv.shape().kv_heads == args.kv_heads && args.layer < kv.shape().layers)
      << "heads of " << args.head_dim << " do not fit the KV cache";
  const int64_t width = int64_t{args.q_heads + 2 * args.kv_heads} * args.head_dim;
  const RowParts parts = {.rows = args.shape.rows, .width = width, .elements_per_thread = 1 << 13};
  ForRowParts(context.pool, parts, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(PrepareRows)(args, kv, begin, end);
  });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
