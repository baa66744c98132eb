#include "kernels/cuda/linear/linear_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/linear_combine.cuh"
#include "kernels/cuda/device/linear_reference.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// CTAs for that many items of work, one a thread, no more than a GPU can hold a few times over.
unsigned Ctas(size_t items) {
  return static_cast<unsigned>(
      std::clamp<size_t>((items + kThreads - 1) / kThreads, 1, size_t{132} * 16));
}

}  // namespace

cudaError_t LinearReference(const ReferenceCall& call, cudaStream_t stream) {
  const LinearShape& shape = call.shape;
  if (!IsSupported(shape) || call.rows < 0) return cudaErrorInvalidValue;
  if (call.rows == 0) return cudaSuccess;
  constexpr int kOutputs = kReferenceTiles * 8;
  const dim3 grid(static_cast<unsigned>((shape.outputs + kOutputs - 1) / kOutputs),
                  static_cast<unsigned>((call.rows + kReferenceRows - 1) / kReferenceRows),
                  static_cast<unsigned>(shape.segments));
  const bool whole = shape.segments == 1;
  LinearReferenceKernel<<<grid, 32, 0, stream>>>(
      {.weight = static_cast<const uint16_t*>(call.weight),
       .bias = whole ? static_cast<const uint16_t*>(call.bias) : nullptr,
       .x = static_cast<const uint16_t*>(call.x),
       .product = call.product,
       .x_stride = static_cast<size_t>(shape.x_stride),
       .product_stride = static_cast<size_t>(whole ? shape.y_stride : shape.outputs),
       .rows = call.rows,
       .outputs = shape.outputs,
       .inputs = shape.inputs,
       .length = shape.inputs / shape.segments,
       .product_f32 = ProductType(shape) == DType::kF32});
  return cudaGetLastError();
}

cudaError_t LinearCombine(const CombineCall& call, cudaStream_t stream) {
  const LinearShape& shape = call.shape;
  if (!IsSupported(shape) || shape.output != DType::kBf16 || call.rows < 0) {
    return cudaErrorInvalidValue;
  }
  if (call.rows == 0) return cudaSuccess;
  const LinearCombineParameters parameters{.partials = call.partials,
                                           .bias = static_cast<const uint16_t*>(call.bias),
                                           .y = static_cast<uint16_t*>(call.y),
                                           .partial_stride = call.partial_stride,
                                           .y_stride = static_cast<size_t>(shape.y_stride),
                                           .rows = call.rows,
                                           .outputs = shape.outputs,
                                           .accumulate = call.accumulate};
  const unsigned grid =
      Ctas(static_cast<size_t>(call.rows) * static_cast<size_t>(shape.outputs) / 4);
  switch (shape.segments) {
    case 1:
      LinearCombineKernel<1><<<grid, kThreads, 0, stream>>>(parameters);
      break;
    case 2:
      LinearCombineKernel<2><<<grid, kThreads, 0, stream>>>(parameters);
      break;
    case 4:
      LinearCombineKernel<4><<<grid, kThreads, 0, stream>>>(parameters);
      break;
    case 8:
      LinearCombineKernel<8><<<grid, kThreads, 0, stream>>>(parameters);
      break;
  }
  return cudaGetLastError();
}

}  // namespace lockstep::kernels::cuda
