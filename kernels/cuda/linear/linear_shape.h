#pragma once

#include <compare>
#include <cstddef>

#include "kernels/api/dtype.h"

namespace lockstep::kernels::cuda {

// A linear layer as far as its bits and its library calls depend on it. The number of rows is not
// here: no order of additions may see it.
struct LinearShape {
  int outputs = 0;   // A multiple of 8.
  int inputs = 0;    // A multiple of 64 * segments.
  int segments = 1;  // Equal runs of inputs, each summed from zero, combined by T: 1, 2, 4 or 8.
  DType output = DType::kBf16;  // kF32 only with one segment and no bias: lm_head.
  bool bias = false;
  int x_stride = 0;  // Elements between rows of x.
  int y_stride = 0;  // Elements between rows of y.

  friend auto operator<=>(const LinearShape&, const LinearShape&) = default;
};

// Pointers handed to a product are multiples of this.
inline constexpr size_t kLinearAlignment = 256;

// Segments that the kernels combine in registers.
inline constexpr int kSegmentsMax = 8;

constexpr bool IsSupported(const LinearShape& shape) {
  const bool power = shape.segments == 1 || shape.segments == 2 || shape.segments == 4 ||
                     shape.segments == kSegmentsMax;
  if (!power || shape.outputs <= 0 || shape.outputs % 8 != 0) return false;
  if (shape.inputs <= 0 || shape.inputs % (64 * shape.segments) != 0) return false;
  if (shape.x_stride < shape.inputs || shape.x_stride % 8 != 0) return false;
  if (shape.y_stride < shape.outputs || shape.y_stride % 8 != 0) return false;
  if (shape.output == DType::kF32) return shape.segments == 1 && !shape.bias;
  return shape.output == DType::kBf16;
}

// What a product writes: y itself with one segment, fp32 partial sums with several.
constexpr DType ProductType(const LinearShape& shape) {
  return shape.segments == 1 ? shape.output : DType::kF32;
}

}  // namespace lockstep::kernels::cuda
