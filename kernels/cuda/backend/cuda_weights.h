#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/host_tensor.h"
#include "kernels/api/linear.h"
#include "kernels/cuda/linear/linear_shape.h"
#include "kernels/cuda/runtime/staged_copy.h"

namespace lockstep::kernels::cuda {

// Where weights go on their way to the device. Memory of the host is read when a function that is
// given this returns; the device's own, of weights that it drew, lives until the stream has run
// this far.
struct WeightCopier {
  StagedCopy* staged = nullptr;  // On `stream`.
  cudaStream_t stream = nullptr;
};

// A weight as the checkpoint lays it out, in bf16; its bias too. One that ranks reduce is cut into
// its segments, each a matrix of its own with fp32 products.
class CudaLinearWeight final : public LinearWeight {
 public:
  // Stacks tensors along outputs. An fp32 tensor is rounded to bf16. INVALID_ARGUMENT names a layer
  // that the kernels cannot run.
  static absl::StatusOr<std::unique_ptr<CudaLinearWeight>> Create(
      std::span<const HostTensor> weights, std::span<const HostTensor> biases,
      const LinearLayout& layout, WeightCopier copier);

  int outputs() const override {
    return layout_.gathered_outputs > 0 ? layout_.gathered_outputs : shape_.outputs;
  }
  int inputs() const override { return shape_.inputs * parts_; }
  size_t bytes() const override { return weight_.bytes() + bias_.bytes(); }

  // With bf16 or fp32 output.
  LinearShape shape(DType output) const;
  const LinearLayout& layout() const { return layout_; }
  bool shared() const { return layout_.reduced || layout_.gathered_outputs > 0; }
  // Of a shared layer: what one product of this rank is, and where its weight lies.
  LinearShape part_shape() const { return shape(DType::kF32); }
  int parts() const { return parts_; }
  const void* part(int index) const {
    return weight_.as<uint16_t>() + static_cast<size_t>(index) *
                                        static_cast<size_t>(shape_.outputs) *
                                        static_cast<size_t>(shape_.inputs);
  }
  const void* weight() const { return weight_.as<void>(); }
  const void* bias() const { return bias_.as<void>(); }

 private:
  CudaLinearWeight() = default;

  LinearShape shape_;  // Of one part.
  LinearLayout layout_;
  int parts_ = 1;
  Buffer weight_;
  Buffer bias_;
};

// The tensors one behind the other, in bf16.
absl::StatusOr<Buffer> UploadBf16(std::span<const HostTensor> tensors, WeightCopier copier);
// In fp32.
absl::StatusOr<Buffer> UploadF32(const HostTensor& tensor, WeightCopier copier);

}  // namespace lockstep::kernels::cuda
