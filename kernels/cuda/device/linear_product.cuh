#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/linear/linear_shape.h"

// What our kernels of a product take, whichever way they compute it. x: bf16 [rows, inputs],
// weight: bf16 [outputs, inputs], product: [segments][rows, outputs].
namespace lockstep::kernels::cuda {

struct LinearProductParameters {
  const uint16_t* weight;
  const uint16_t* bias;
  const uint16_t* x;
  void* product;
  size_t x_stride;
  size_t product_stride;  // Between rows; segments are rows * product_stride apart.
  int rows;
  int outputs;
  int inputs;
  int length;  // Inputs of a segment.
  bool product_f32;
};

// Of a ReferenceCall or a LinearMmaCall, whose shape is supported.
template <typename Call>
LinearProductParameters ProductParametersOf(const Call& call) {
  const LinearShape& shape = call.shape;
  const bool whole = shape.segments == 1;
  return {.weight = static_cast<const uint16_t*>(call.weight),
          .bias = whole ? static_cast<const uint16_t*>(call.bias) : nullptr,
          .x = static_cast<const uint16_t*>(call.x),
          .product = call.product,
          .x_stride = static_cast<size_t>(shape.x_stride),
          .product_stride = static_cast<size_t>(whole ? shape.y_stride : shape.outputs),
          .rows = call.rows,
          .outputs = shape.outputs,
          .inputs = shape.inputs,
          .length = shape.inputs / shape.segments,
          .product_f32 = ProductType(shape) == DType::kF32};
}

}  // namespace lockstep::kernels::cuda
