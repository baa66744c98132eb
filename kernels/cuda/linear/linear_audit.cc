#include "kernels/cuda/linear/linear_audit.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {

LinearAudit::LinearAudit(const LinearShape& shape, bool accumulate, int slots)
    : shape_(shape), ring_shape_(shape), accumulate_(accumulate), slots_(slots) {
  ring_shape_.x_stride = shape.inputs;
  ring_shape_.y_stride = shape.outputs;
}

absl::StatusOr<LinearAudit> LinearAudit::Create(const LinearShape& shape, bool accumulate,
                                                int slots) {
  if (!IsSupported(shape) || slots <= 0 || (accumulate && shape.output != DType::kBf16)) {
    return absl::InvalidArgumentError(absl::StrCat("audit of a linear layer of ", shape.outputs,
                                                   " x ", shape.inputs, " in ", slots, " slots"));
  }
  LinearAudit audit(shape, accumulate, slots);
  const size_t rows = static_cast<size_t>(slots);
  const size_t x_elements = rows * static_cast<size_t>(shape.inputs);
  const size_t y_elements = rows * static_cast<size_t>(shape.outputs);
  const size_t segments = static_cast<size_t>(shape.segments);
  const auto allocate = [](Buffer& buffer, size_t bytes) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(buffer, AllocateDevice(bytes, "audit"));
    return StatusOfCuda(cudaMemset(buffer.as<void>(), 0, bytes), "audit");
  };
  LOCKSTEP_RETURN_IF_ERROR(allocate(audit.x_, x_elements * SizeOf(DType::kBf16)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(audit.y_, y_elements * SizeOf(shape.output)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(audit.expected_, y_elements * SizeOf(shape.output)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(audit.product_, segments * y_elements * SizeOf(DType::kF32)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(audit.filled_, rows * sizeof(uint32_t)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(audit.differing_, sizeof(unsigned long long)));
  return audit;
}

absl::Status LinearAudit::SaveY(const LinearCall& call, const uint64_t* step, const Buffer& ring,
                                cudaStream_t stream) {
  const size_t element = SizeOf(shape_.output);
  return StatusOfCuda(
      SaveAuditedRow({.matrix = call.y,
                      .ring = ring.as<void>(),
                      .filled = filled_.as<uint32_t>(),
                      .step = step,
                      .stride_bytes = static_cast<size_t>(shape_.y_stride) * element,
                      .row_bytes = static_cast<size_t>(shape_.outputs) * element,
                      .rows = call.rows,
                      .slots = slots_},
                     stream),
      "audit");
}

absl::Status LinearAudit::EnqueueBefore(const LinearCall& call, const uint64_t* step,
                                        cudaStream_t stream) {
  const size_t element = SizeOf(DType::kBf16);
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(SaveAuditedRow({.matrix = call.x,
                                   .ring = x_.as<void>(),
                                   .step = step,
                                   .stride_bytes = static_cast<size_t>(shape_.x_stride) * element,
                                   .row_bytes = static_cast<size_t>(shape_.inputs) * element,
                                   .rows = call.rows,
                                   .slots = slots_},
                                  stream),
                   "audit"));
  return accumulate_ ? SaveY(call, step, expected_, stream) : absl::OkStatus();
}

absl::Status LinearAudit::EnqueueAfter(const LinearCall& call, const uint64_t* step,
                                       cudaStream_t stream) {
  return SaveY(call, step, y_, stream);
}

absl::Status LinearAudit::Recompute(const void* weight, const void* bias, cudaStream_t stream) {
  const bool apart = accumulate_ || shape_.segments > 1;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(LinearReference({.shape = ring_shape_,
                                    .rows = slots_,
                                    .weight = weight,
                                    .bias = bias,
                                    .x = x_.as<void>(),
                                    .product = apart ? product_.as<void>() : expected_.as<void>()},
                                   stream),
                   "audit"));
  if (!apart) return absl::OkStatus();
  return StatusOfCuda(LinearCombine({.shape = ring_shape_,
                                     .rows = slots_,
                                     .partials = product_.as<void>(),
                                     .partial_stride = static_cast<size_t>(slots_) *
                                                       static_cast<size_t>(shape_.outputs),
                                     .bias = bias,
                                     .y = expected_.as<void>(),
                                     .accumulate = accumulate_},
                                    stream),
                      "audit");
}

absl::StatusOr<uint64_t> LinearAudit::Check(const void* weight, const void* bias,
                                            uint64_t& compared, cudaStream_t stream) {
  std::vector<uint32_t> filled(static_cast<size_t>(slots_));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemcpyAsync(filled.data(), filled_.as<void>(), filled_.bytes(),
                                   cudaMemcpyDeviceToHost, stream),
                   "audit"));
  LOCKSTEP_RETURN_IF_ERROR(Recompute(weight, bias, stream));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemsetAsync(filled_.as<void>(), 0, filled_.bytes(), stream), "audit"));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemsetAsync(differing_.as<void>(), 0, differing_.bytes(), stream), "audit"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaStreamSynchronize(stream), "audit"));
  const size_t row_bytes = static_cast<size_t>(shape_.outputs) * SizeOf(shape_.output);
  compared = 0;
  for (size_t slot = 0; slot < filled.size(); ++slot) {
    if (filled[slot] == 0) continue;
    compared += static_cast<uint64_t>(shape_.outputs);
    LOCKSTEP_RETURN_IF_ERROR(
        StatusOfCuda(CountDifferences({.a = y_.as<uint8_t>() + slot * row_bytes,
                                       .b = expected_.as<uint8_t>() + slot * row_bytes,
                                       .rows = 1,
                                       .columns = shape_.outputs,
                                       .type = shape_.output},
                                      differing_.as<unsigned long long>(), stream),
                     "audit"));
  }
  unsigned long long differing = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemcpyAsync(&differing, differing_.as<void>(), sizeof(differing),
                                   cudaMemcpyDeviceToHost, stream),
                   "audit"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaStreamSynchronize(stream), "audit"));
  return differing;
}

}  // namespace lockstep::kernels::cuda
