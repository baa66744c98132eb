#include "kernels/cuda/backend/cuda_weights.h"

#include <string>
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

// Whether the device can read the memory by itself: its own, of weights that it drew, or pinned.
absl::StatusOr<bool> DeviceReads(const HostTensor& tensor) {
  cudaPointerAttributes attributes = {};
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaPointerGetAttributes(&attributes, tensor.data), tensor.name.c_str()));
  return attributes.type != cudaMemoryTypeUnregistered;
}

// Elements as they are, without the gaps between rows.
absl::Status CopyAsStored(void* device, const HostTensor& tensor, WeightCopier copier) {
  const size_t element = SizeOf(tensor.dtype);
  const Rows rows = RowsOf(tensor);
  LOCKSTEP_ASSIGN_OR_RETURN(const bool direct, DeviceReads(tensor));
  if (!direct) {
    return copier.staged->Rows(device,
                               {.data = tensor.data,
                                .count = rows.count,
                                .width = rows.width * element,
                                .stride = rows.stride * element},
                               tensor.name);
  }
  return StatusOfCuda(
      cudaMemcpy2DAsync(device, rows.width * element, tensor.data, rows.stride * element,
                        rows.width * element, rows.count, cudaMemcpyDefault, copier.stream),
      tensor.name.c_str());
}

template <typename T>
absl::Status CopyValues(void* device, const std::vector<T>& values, const std::string& name,
                        WeightCopier copier) {
  const size_t bytes = values.size() * sizeof(T);
  return copier.staged->Rows(
      device, {.data = values.data(), .count = 1, .width = bytes, .stride = bytes}, name);
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

absl::StatusOr<Buffer> UploadBf16(std::span<const HostTensor> tensors, WeightCopier copier) {
  size_t count = 0;
  for (const HostTensor& tensor : tensors) count += ElementCount(tensor);
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer,
                            AllocateDevice(count * sizeof(uint16_t), tensors.front().name));
  uint16_t* target = buffer.as<uint16_t>();
  for (const HostTensor& tensor : tensors) {
    LOCKSTEP_RETURN_IF_ERROR(tensor.dtype == DType::kBf16
                                 ? CopyAsStored(target, tensor, copier)
                                 : CopyValues(target, RoundedToBf16(tensor), tensor.name, copier));
    target += ElementCount(tensor);
  }
  return buffer;
}

absl::StatusOr<Buffer> UploadF32(const HostTensor& tensor, WeightCopier copier) {
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer,
                            AllocateDevice(ElementCount(tensor) * sizeof(float), tensor.name));
  LOCKSTEP_RETURN_IF_ERROR(
      tensor.dtype == DType::kF32
          ? CopyAsStored(buffer.as<void>(), tensor, copier)
          : CopyValues(buffer.as<void>(), WidenedToF32(tensor), tensor.name, copier));
  return buffer;
}

absl::StatusOr<std::unique_ptr<CudaLinearWeight>> CudaLinearWeight::Create(
    std::span<const HostTensor> weights, std::span<const HostTensor> biases,
    const LinearLayout& layout, WeightCopier copier) {
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
                              UploadBf16(Segments(weights.front(), result->parts_), copier));
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(result->weight_, UploadBf16(weights, copier));
  }
  if (shape.bias) {
    LOCKSTEP_ASSIGN_OR_RETURN(result->bias_, UploadBf16(biases, copier));
  }
  return result;
}

LinearShape CudaLinearWeight::shape(DType output) const {
  LinearShape shape = shape_;
  shape.output = output;
  return shape;
}

}  // namespace lockstep::kernels::cuda
