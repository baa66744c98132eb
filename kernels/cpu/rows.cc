// Embedding and GatherRows: copies of rows, no arithmetic but the exact widening of bf16.
#include <algorithm>
#include <cstring>

#include "kernels/api/bf16.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/row_parts.h"

namespace lockstep::kernels::cpu {
namespace {

RowParts PartsOf(int rows, int width) {
  return {.rows = rows, .width = width, .elements_per_thread = 1 << 16};
}

}  // namespace

void Embedding(OpContext& context, const EmbeddingArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  ForRowParts(context.pool, PartsOf(args.rows, args.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* y = static_cast<float*>(args.y) + static_cast<size_t>(row) * width;
      int32_t id = args.ids[row];
      if (id < 0) id = std::max(0, args.drawn_ids[kernels::DrawnSlot(id)]);
      const size_t first = static_cast<size_t>(id) * width;
      if (args.table_dtype == DType::kBf16) {
        const uint16_t* table = static_cast<const uint16_t*>(args.table) + first;
        for (size_t i = 0; i < width; ++i) y[i] = FloatOfBf16(table[i]);
      } else {
        std::memcpy(y, static_cast<const float*>(args.table) + first, width * sizeof(float));
      }
    }
  });
}

void GatherRows(OpContext& context, const GatherRowsArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  ForRowParts(context.pool, PartsOf(args.rows, args.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(
          static_cast<float*>(args.y) + static_cast<size_t>(row) * width,
          static_cast<const float*>(args.x) + static_cast<size_t>(args.source_rows[row]) * width,
          width * sizeof(float));
    }
  });
}

}  // namespace lockstep::kernels::cpu
