#include "kernels/cuda/linear/linear_rung.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/linear_mma.h"
#include "kernels/cuda/linear/linear_sm90.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {
namespace {

size_t Aligned(size_t bytes) {
  return (bytes + kLinearAlignment - 1) / kLinearAlignment * kLinearAlignment;
}

bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kLinearAlignment == 0;
}

}  // namespace

absl::StatusOr<LinearRung> LinearRung::Create(cublasLtHandle_t handle, const LinearShape& shape,
                                              int rows, const Choice& choice) {
  const auto own = [&](const auto& tilings) -> absl::StatusOr<LinearRung> {
    const size_t index = static_cast<size_t>(choice.traits.id);
    if (index >= tilings.size() || !Fits(tilings[index], shape, rows)) {
      return absl::FailedPreconditionError("a certificate names a tiling that does not fit");
    }
    return LinearRung(shape, rows, choice, std::nullopt);
  };
  if (choice.traits.engine == LinearEngine::kSm90) return own(Sm90Tilings());
  if (choice.traits.engine == LinearEngine::kMma) return own(MmaTilings());
  LOCKSTEP_ASSIGN_OR_RETURN(LtMatmul matmul, LtMatmul::Create(handle, shape, rows));
  LOCKSTEP_ASSIGN_OR_RETURN(const size_t workspace_bytes,
                            matmul.Check(AlgorithmOf(choice.algorithm)));
  if (workspace_bytes > choice.workspace_bytes) {
    return absl::FailedPreconditionError("a library algorithm wants more workspace than certified");
  }
  return LinearRung(shape, rows, choice, std::move(matmul));
}

size_t LinearRung::ProductBytes() const {
  const size_t width = static_cast<size_t>(shape_.segments == 1 ? shape_.y_stride : shape_.outputs);
  return static_cast<size_t>(shape_.segments) * static_cast<size_t>(rows_) * width *
         SizeOf(ProductType(shape_));
}

size_t LinearRung::WorkspaceBytes(bool accumulate) const {
  if (!has_product()) return 0;
  const bool apart = shape_.segments > 1 || accumulate;
  return Aligned(choice_.workspace_bytes) + (apart ? Aligned(ProductBytes()) : 0);
}

bool LinearRung::WritesPaddingOfY(bool accumulate) const {
  return has_product() && shape_.segments == 1 && !accumulate;
}

absl::Status LinearRung::EnqueueProduct(const ProductPointers& pointers,
                                        cudaStream_t stream) const {
  if (matmul_.has_value()) {
    return matmul_->Enqueue(AlgorithmOf(choice_.algorithm), pointers, stream);
  }
  return StatusOfCuda(LinearByMma({.shape = shape_,
                                   .tiling = choice_.traits.id,
                                   .rows = rows_,
                                   .weight = pointers.weight,
                                   .bias = pointers.bias,
                                   .x = pointers.x,
                                   .product = pointers.product},
                                  stream),
                      "product of a linear layer");
}

absl::Status LinearRung::Enqueue(const LinearCall& call, cudaStream_t stream) const {
  if (call.rows <= 0 || call.rows > rows_ || (shape_.bias != (call.bias != nullptr)) ||
      (call.accumulate && shape_.output != DType::kBf16) ||
      (call.norm.weight != nullptr && !call.accumulate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear layer: ", call.rows, " rows on a rung of ", rows_));
  }
  if (call.workspace_bytes < WorkspaceBytes(call.accumulate)) {
    return absl::InvalidArgumentError(absl::StrCat("linear layer: ", call.workspace_bytes,
                                                   " bytes of workspace, needs ",
                                                   WorkspaceBytes(call.accumulate)));
  }
  if (!IsAligned(call.weight) || !IsAligned(call.bias) || !IsAligned(call.x) ||
      !IsAligned(call.y) || !IsAligned(call.workspace)) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear layer: a pointer is no multiple of ", kLinearAlignment));
  }
  const RmsNormArgs norm = {.weight = call.norm.weight,
                            .epsilon = call.norm.epsilon,
                            .width = shape_.outputs,
                            .rows = call.rows,
                            .x = call.y,
                            .x_stride = static_cast<size_t>(shape_.y_stride),
                            .y = call.norm.y,
                            .y_stride = call.norm.y_stride};
  if (!has_product()) {
    LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(LinearOnSm90({.shape = shape_,
                                                        .tiling = choice_.traits.id,
                                                        .rows = call.rows,
                                                        .weight = call.weight,
                                                        .bias = call.bias,
                                                        .x = call.x,
                                                        .y = call.y,
                                                        .accumulate = call.accumulate},
                                                       stream),
                                          "linear layer"));
    if (call.norm.weight == nullptr) return absl::OkStatus();
    return StatusOfCuda(RmsNorm(norm, stream), "RMSNorm behind a linear layer");
  }
  const bool apart = shape_.segments > 1 || call.accumulate;
  void* product =
      apart ? static_cast<uint8_t*>(call.workspace) + Aligned(choice_.workspace_bytes) : call.y;
  LOCKSTEP_RETURN_IF_ERROR(EnqueueProduct({.weight = call.weight,
                                           .bias = shape_.segments == 1 ? call.bias : nullptr,
                                           .x = call.x,
                                           .product = product,
                                           .workspace = call.workspace,
                                           .workspace_bytes = choice_.workspace_bytes},
                                          stream));
  if (!apart) return absl::OkStatus();
  const size_t partial_stride = static_cast<size_t>(rows_) * static_cast<size_t>(shape_.outputs);
  if (call.norm.weight != nullptr) {
    return StatusOfCuda(
        ResidualRmsNorm(
            {.norm = norm,
             .residual = call.y,
             .residual_stride = static_cast<size_t>(shape_.y_stride),
             .segments = shape_.segments,
             .update = product,
             .partials = static_cast<const float*>(product),
             .partial_stride = partial_stride,
             .bias = shape_.segments == 1 ? nullptr : static_cast<const uint16_t*>(call.bias)},
            stream),
        "residual and RMSNorm behind a linear layer");
  }
  return StatusOfCuda(LinearCombine({.shape = shape_,
                                     .rows = call.rows,
                                     .partials = product,
                                     .partial_stride = partial_stride,
                                     .bias = call.bias,
                                     .y = call.y,
                                     .accumulate = call.accumulate},
                                    stream),
                      "linear combine");
}

}  // namespace lockstep::kernels::cuda
