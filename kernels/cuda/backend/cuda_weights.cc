#include "kernels/cuda/backend/cuda_weights.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/api/bf16.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

// How a tensor lies in memory: rows of `width` elements, `stride` apart.
struct Rows {
  size_t count;
  size_t width;
  size_t stride;
};

Rows RowsOf(const HostTensor& tensor) {
  const size_t elements = ElementCount(tensor);
  if (tensor.shape.size() != 2 || tensor.row_stride == 0) return {1, elements, elements};
  return {static_cast<size_t>(tensor.shape[0]), static_cast<size_t>(tensor.shape[1]),
          RowStride(tensor)};
}

std::vector<uint16_t> RoundedToBf16(const HostTensor& tensor) {
  const Rows rows = RowsOf(tensor);
  std::vector<uint16_t> rounded;
  rounded.reserve(rows.count * rows.width);
  for (size_t row = 0; row < rows.count; ++row) {
    for (size_t i = 0; i < rows.width; ++i) {
      rounded.push_back(Bf16OfFloat(LoadElement(tensor.data, tensor.dtype, row * rows.stride + i)));
    }
  }
  return rounded;
}

std::vector<float> WidenedToF32(const HostTensor& tensor) {
  std::vector<float> widened(ElementCount(tensor));
  for (size_t i = 0; i < widened.size(); ++i) {
    widened[i] = LoadElement(tensor.data, tensor.dtype, i);
  }
  return widened;
}

absl::Status CopyToDevice(void* device, const void* host, size_t bytes, cudaStream_t stream) {
  // The source may be the device's memory too.
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, stream), "copying weights"));
  return StatusOfCuda(cudaStreamSynchronize(stream), "copying weights");
}

absl::Status CopyRowsToDevice(uint16_t* device, const HostTensor& tensor, cudaStream_t stream) {
  constexpr size_t kElement = sizeof(uint16_t);
  const Rows rows = RowsOf(tensor);
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaMemcpy2DAsync(device, rows.width * kElement, tensor.data, rows.stride * kElement,
                        rows.width * kElement, rows.count, cudaMemcpyDefault, stream),
      "copying weights"));
  return StatusOfCuda(cudaStreamSynchronize(stream), "copying weights");
}

// The segments of a rank's part of a row-parallel layer, each a matrix of its own.
std::vector<HostTensor> Segments(const HostTensor& matrix, int segments) {
  std::vector<HostTensor> parts;
  const int64_t length = matrix.shape[1] / segments;
  for (int64_t i = 0; i < segments; ++i) {
    parts.push_back(ColumnRange(matrix, i * length, (i + 1) * length));
  }
  return parts;
}

}  // namespace

absl::StatusOr<Buffer> UploadBf16(std::span<const HostTensor> tensors, cudaStream_t stream) {
  size_t count = 0;
  for (const HostTensor& tensor : tensors) count += ElementCount(tensor);
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer,
                            AllocateDevice(count * sizeof(uint16_t), tensors.front().name));
  uint16_t* target = buffer.as<uint16_t>();
  for (const HostTensor& tensor : tensors) {
    const size_t elements = ElementCount(tensor);
    const size_t bytes = elements * sizeof(uint16_t);
    if (tensor.dtype == DType::kBf16 && tensor.row_stride > 0 && tensor.shape.size() == 2) {
      LOCKSTEP_RETURN_IF_ERROR(CopyRowsToDevice(target, tensor, stream));
    } else if (tensor.dtype == DType::kBf16) {
      LOCKSTEP_RETURN_IF_ERROR(CopyToDevice(target, tensor.data, bytes, stream));
    } else {
      const std::vector<uint16_t> rounded = RoundedToBf16(tensor);
      LOCKSTEP_RETURN_IF_ERROR(CopyToDevice(target, rounded.data(), bytes, stream));
    }
    target += elements;
  }
  return buffer;
}

absl::StatusOr<Buffer> UploadF32(const HostTensor& tensor, cudaStream_t stream) {
  const size_t bytes = ElementCount(tensor) * sizeof(float);
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer, AllocateDevice(bytes, tensor.name));
  if (tensor.dtype == DType::kF32) {
    LOCKSTEP_RETURN_IF_ERROR(CopyToDevice(buffer.as<void>(), tensor.data, bytes, stream));
  } else {
    const std::vector<float> widened = WidenedToF32(tensor);
    LOCKSTEP_RETURN_IF_ERROR(CopyToDevice(buffer.as<void>(), widened.data(), bytes, stream));
  }
  return buffer;
}

absl::StatusOr<std::unique_ptr<CudaLinearWeight>> CudaLinearWeight::Create(
    std::span<const HostTensor> weights, std::span<const HostTensor> biases,
    const LinearLayout& layout, cudaStream_t stream) {
  std::unique_ptr<CudaLinearWeight> result(new CudaLinearWeight);
  result->layout_ = layout;
  if (layout.reduced) {
    if (weights.size() != 1 || !biases.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          weights.front().name, ": ranks reduce layers of one matrix without bias only"));
    }
    result->parts_ = layout.segments;
  }
  const int segments = layout.segments / result->parts_;
  LinearShape& shape = result->shape_;
  for (const HostTensor& weight : weights) shape.outputs += static_cast<int>(weight.shape.front());
  shape.x_stride = static_cast<int>(weights.front().shape.back());
  shape.inputs = shape.x_stride / result->parts_;
  shape.segments = segments;
  shape.bias = !biases.empty();
  shape.y_stride = shape.outputs;
  if (!IsSupported(shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(weights.front().name, ": a linear layer of ", shape.outputs, " outputs and ",
                     shape.x_stride, " inputs in ", layout.segments,
                     " segments has no kernel on this backend: outputs must be a "
                     "multiple of 8, inputs of 64 x segments"));
  }
  if (result->parts_ > 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(result->weight_,
                              UploadBf16(Segments(weights.front(), result->parts_), stream));
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(result->weight_, UploadBf16(weights, stream));
  }
  if (shape.bias) {
    LOCKSTEP_ASSIGN_OR_RETURN(result->bias_, UploadBf16(biases, stream));
  }
  return result;
}

LinearShape CudaLinearWeight::shape(DType output) const {
  LinearShape shape = shape_;
  shape.output = output;
  return shape;
}

}  // namespace lockstep::kernels::cuda
