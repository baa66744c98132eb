#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/device/rms_norm.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"

namespace lockstep::kernels::cuda {
namespace {

template <int kVectors, int kSegments>
cudaError_t Launch(const NormParameters& parameters, int rows, cudaStream_t stream) {
  const unsigned vectors = static_cast<unsigned>(parameters.width / kRowVector);
  const unsigned threads = std::bit_ceil((vectors + kVectors - 1) / kVectors);
  return LaunchKernel(RmsNormKernel<kVectors, kSegments>, dim3(static_cast<unsigned>(rows)),
                      dim3(std::max(32u, threads)), 0, stream, parameters);
}

template <int kSegments>
cudaError_t LaunchWidth(const NormParameters& parameters, int rows, cudaStream_t stream) {
  if (parameters.width <= 8192) return Launch<1, kSegments>(parameters, rows, stream);
  return Launch<2, kSegments>(parameters, rows, stream);
}

bool IsSupported(const RmsNormArgs& args, size_t x_stride) {
  return args.rows >= 0 && args.width > 0 && args.width <= kNormWidthMax &&
         args.width % kRowVector == 0 && x_stride % kRowVector == 0 &&
         args.y_stride % kRowVector == 0;
}

NormParameters ParametersOf(const RmsNormArgs& args) {
  return {.weight = args.weight,
          .x = static_cast<const uint16_t*>(args.x),
          .y = static_cast<uint16_t*>(args.y),
          .x_stride = args.x_stride,
          .y_stride = args.y_stride,
          .width = args.width,
          .inverse_width = 1.0f / static_cast<float>(args.width),
          .epsilon = args.epsilon};
}

}  // namespace

cudaError_t RmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  if (!IsSupported(args, args.x_stride)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  return LaunchWidth<0>(ParametersOf(args), args.rows, stream);
}

cudaError_t ResidualRmsNorm(const ResidualRmsNormArgs& args, cudaStream_t stream) {
  const RmsNormArgs& norm = args.norm;
  if (!IsSupported(norm, args.residual_stride) || args.partial_stride % kRowVector != 0) {
    return cudaErrorInvalidValue;
  }
  if (norm.rows == 0) return cudaSuccess;
  NormParameters parameters = ParametersOf(norm);
  parameters.residual = static_cast<uint16_t*>(args.residual);
  parameters.x_stride = args.residual_stride;
  parameters.update = args.segments == 1 ? args.update : args.partials;
  parameters.partial_stride = args.partial_stride;
  parameters.bias = args.bias;
  switch (args.segments) {
    case 1:
      if (args.bias != nullptr) return cudaErrorInvalidValue;
      return LaunchWidth<1>(parameters, norm.rows, stream);
    case 2:
      return LaunchWidth<2>(parameters, norm.rows, stream);
    case 4:
      return LaunchWidth<4>(parameters, norm.rows, stream);
    case 8:
      return LaunchWidth<8>(parameters, norm.rows, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace lockstep::kernels::cuda
