#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"

namespace lockstep::kernels {

// Stands among the ids of a step for drawn_ids[slot], which the step before has left on the device.
constexpr int32_t DrawnId(int32_t slot) { return -1 - slot; }
constexpr int32_t DrawnSlot(int32_t id) { return -1 - id; }

// y[r, :] = table[ids[r], :]. Padding rows carry id 0. table: [vocabulary, width], as stored. An id
// that DrawnId made is looked up first; a negative one found there, of a draw that failed, counts
// as 0.
struct EmbeddingArgs {
  const void* table = nullptr;  // Made by KernelSet::UploadTable.
  DType table_dtype = DType::kF32;
  int width = 0;
  int rows = 0;
  const int32_t* ids = nullptr;
  const int32_t* drawn_ids = nullptr;  // Looked at only where ids say so.
  void* y = nullptr;                   // [rows, width] activation type.
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
