#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"

namespace lockstep::kernels {

// y[r, :] = table[ids[r], :]. Padding rows carry id 0. table: [vocabulary, width], as stored.
struct EmbeddingArgs {
  const void* table = nullptr;  // Made by KernelSet::UploadTable.
  DType table_dtype = DType::kF32;
  int width = 0;
  int rows = 0;
  const int32_t* ids = nullptr;
  void* y = nullptr;  // [rows, width] activation type.
};

// y[r, :] = weight * (x[r, :] / sqrt(mean of squares + epsilon)); the sum of squares is the tree T.
struct RmsNormArgs {
  const float* weight = nullptr;  // [width]
  float epsilon = 0;
  int width = 0;
  int rows = 0;
  const void* x = nullptr;
  size_t x_stride = 0;
  void* y = nullptr;
  size_t y_stride = 0;
};

// y[r, i] = silu(gate_up[r, i]) * gate_up[r, width + i].
struct SwiGluArgs {
  int width = 0;
  int rows = 0;
  const void* gate_up = nullptr;  // [rows, 2 * width]
  void* y = nullptr;              // [rows, width]
};

// Copies chosen rows: y[r, :] = x[source_rows[r], :].
struct GatherRowsArgs {
  int width = 0;
  int rows = 0;
  const int32_t* source_rows = nullptr;
  const void* x = nullptr;
  void* y = nullptr;
};

}  // namespace lockstep::kernels
