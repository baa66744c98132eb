#include "kernels/cuda/linear/linear_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/linear_combine.cuh"
#include "kernels/cuda/device/linear_reference.cuh"
#include "kernels/cuda/launch.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// CTAs for that many items of work, one a thread, no more than a GPU can hold a few times over.
unsigned Ctas(size_t items) {
  return static_cast<unsigned>(
      std::clamp<size_t>((items + kThreads - 1) / kThreads, 1, size_t{132} * 16));
}

cudaError_t LaunchCombine(void (*kernel)(LinearCombineParameters),
                          const LinearCombineParameters& parameters, cudaStream_t stream) {
  const size_t fours =
      static_cast<size_t>(parameters.rows) * static_cast<size_t>(parameters.outputs) / 4;
  return LaunchKernel(kernel, dim3(Ctas(fours)), dim3(kThreads), 0, stream, parameters);
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
  return LaunchInOrder(LinearReferenceKernel, grid, dim3(32), 0, stream, ProductParametersOf(call));
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
  switch (shape.segments) {
    case 1:
      return LaunchCombine(LinearCombineKernel<1>, parameters, stream);
    case 2:
      return LaunchCombine(LinearCombineKernel<2>, parameters, stream);
    case 4:
      return LaunchCombine(LinearCombineKernel<4>, parameters, stream);
    default:
      return LaunchCombine(LinearCombineKernel<8>, parameters, stream);
  }
}

}  // namespace lockstep::kernels::cuda
