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

std::vector<uint16_t> RoundedToBf16(const HostTensor& tensor) {
  std::vector<uint16_t> rounded(ElementCount(tensor));
  for (size_t i = 0; i < rounded.size(); ++i) {
    rounded[i] = Bf16OfFloat(LoadElement(tensor.data, tensor.dtype, i));
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
    if (tensor.dtype == DType::kBf16) {
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
    std::span<const HostTensor> weights, std::span<const HostTensor> biases, int segments,
    cudaStream_t stream) {
  std::unique_ptr<CudaLinearWeight> result(new CudaLinearWeight);
  LinearShape& shape = result->shape_;
  for (const HostTensor& weight : weights) shape.outputs += static_cast<int>(weight.shape.front());
  shape.inputs = static_cast<int>(weights.front().shape.back());
  shape.segments = segments;
  shape.bias = !biases.empty();
  shape.x_stride = shape.inputs;
  shape.y_stride = shape.outputs;
  if (!IsSupported(shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(weights.front().name, ": a linear layer of ", shape.outputs, " outputs and ",
                     shape.inputs, " inputs in ", segments,
                     " segments has no kernel on this backend: outputs must be a "
                     "multiple of 8, inputs of 64 x segments"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(result->weight_, UploadBf16(weights, stream));
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
