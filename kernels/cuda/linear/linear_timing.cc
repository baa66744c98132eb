#include "kernels/cuda/linear/linear_timing.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

// Several times the second-level cache of any GPU.
constexpr size_t kColdBytes = size_t{400} << 20;
// Measured on an H200.
constexpr double kReadBytesPerMicrosecond = 4.33e6;
constexpr double kFlopsPerMicrosecond = 750e6;

absl::StatusOr<Buffer> Uniform(size_t elements, uint32_t seed, cudaStream_t stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer,
                            AllocateDevice(elements * SizeOf(DType::kBf16), "timing operands"));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(FillUniform(buffer.as<void>(), elements, seed, stream), "fill"));
  return buffer;
}

}  // namespace

absl::StatusOr<LinearTiming> LinearTiming::Create(const LinearShape& shape, int rows_max,
                                                  size_t workspace_bytes, cudaStream_t stream) {
  LinearTiming timing;
  timing.shape_ = shape;
  timing.stream_ = stream;
  const size_t rows = static_cast<size_t>(rows_max);
  const size_t elements = static_cast<size_t>(shape.outputs) * static_cast<size_t>(shape.inputs);
  timing.weight_bytes_ = elements * SizeOf(DType::kBf16);
  timing.copies_ = static_cast<int>(std::max<size_t>(2, kColdBytes / timing.weight_bytes_ + 1));
  LOCKSTEP_ASSIGN_OR_RETURN(timing.weights_,
                            Uniform(elements * static_cast<size_t>(timing.copies_), 11, stream));
  LOCKSTEP_ASSIGN_OR_RETURN(timing.x_,
                            Uniform(rows * static_cast<size_t>(shape.x_stride), 12, stream));
  LOCKSTEP_ASSIGN_OR_RETURN(timing.bias_, Uniform(static_cast<size_t>(shape.outputs), 13, stream));
  LOCKSTEP_ASSIGN_OR_RETURN(
      timing.y_, AllocateDevice(rows * static_cast<size_t>(shape.y_stride) * SizeOf(shape.output),
                                "timing outputs"));
  LOCKSTEP_ASSIGN_OR_RETURN(timing.workspace_,
                            AllocateDevice(std::max<size_t>(workspace_bytes, 1), "timing scratch"));
  return timing;
}

absl::StatusOr<TimedGraph> LinearTiming::Graph(int rows, double microseconds,
                                               const Layer& layer) const {
  const double once = FloorMicroseconds(shape_, rows) + 2;
  const int turns = std::clamp(static_cast<int>(microseconds / once), 1, 4 * copies_);
  return TimedGraph::Capture(
      turns,
      [&](int turn, cudaStream_t stream) {
        return layer(
            {.weight = weights_.as<uint8_t>() + static_cast<size_t>(turn % copies_) * weight_bytes_,
             .bias = shape_.bias ? bias_.as<void>() : nullptr,
             .rows = rows,
             .x = x_.as<void>(),
             .y = y_.as<void>(),
             .workspace = workspace_.as<void>(),
             .workspace_bytes = workspace_.bytes()},
            stream);
      },
      stream_);
}

double LinearTiming::FloorMicroseconds(const LinearShape& shape, int rows) {
  const double outputs = shape.outputs;
  const double inputs = shape.inputs;
  const double bytes = 2 * (outputs * inputs + rows * inputs) +
                       static_cast<double>(SizeOf(shape.output)) * rows * outputs;
  return std::max(bytes / kReadBytesPerMicrosecond,
                  2 * rows * outputs * inputs / kFlopsPerMicrosecond);
}

}  // namespace lockstep::kernels::cuda
