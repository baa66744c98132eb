#include "kernels/cuda/backend/mode_plans.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

StepBounds WithSplits(StepBounds bounds, int split_kv_size) {
  bounds.split_kv_size = split_kv_size;
  return bounds;
}

}  // namespace

absl::StatusOr<ModePlans> ModePlans::Create(cublasLtHandle_t handle, const CertificateTable& table,
                                            std::span<const LayerToCertify> layers) {
  ModePlans plans;
  for (const auto& [shape, rows_max] : layers) {
    LOCKSTEP_ASSIGN_OR_RETURN(LinearPlan plan, LinearPlan::Create(handle, table, shape));
    plans.linear_scratch_bytes_ =
        std::max({plans.linear_scratch_bytes_, plan.WorkspaceBytes(rows_max, false),
                  plan.WorkspaceBytes(rows_max, shape.output == DType::kBf16)});
    plans.linear_.emplace(shape, std::move(plan));
  }
  return plans;
}

absl::Status ModePlans::AddAttention(const StepBounds& bounds) {
  LOCKSTEP_ASSIGN_OR_RETURN(attention_[bounds.split_kv_size], MakeAttentionScratch(bounds));
  return absl::OkStatus();
}

absl::Status ModePlans::AddFreeAttention(const StepBounds& bounds,
                                         const AttentionSchedule& schedule, cudaStream_t stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(free_splits_, FreeSplits::Create(bounds, schedule, stream));
  for (const int size : free_splits_.Sizes(bounds.split_kv_size)) {
    LOCKSTEP_ASSIGN_OR_RETURN(attention_[size], MakeAttentionScratch(WithSplits(bounds, size)));
  }
  return absl::OkStatus();
}

absl::Status ModePlans::ShareFreeAttention(const StepBounds& bounds,
                                           const AttentionSchedule& schedule, cudaStream_t stream,
                                           const ModePlans& other) {
  LOCKSTEP_ASSIGN_OR_RETURN(free_splits_, FreeSplits::Create(bounds, schedule, stream));
  lender_ = &other;
  return absl::OkStatus();
}

absl::Status ModePlans::LoadProducts(std::span<const LayerToCertify> layers, void* workspace,
                                     cudaStream_t stream) const {
  constexpr char kWhat[] = "loading products";
  size_t weight = 0;
  size_t x = 0;
  size_t y = 0;
  for (const auto& [shape, rows_max] : layers) {
    const size_t rows = static_cast<size_t>(linear(shape)->PaddedRows(rows_max));
    const size_t inputs = static_cast<size_t>(shape.inputs);
    const size_t outputs = static_cast<size_t>(shape.outputs);
    weight = std::max(weight, outputs * inputs);
    x = std::max(x, rows * inputs);
    y = std::max(y, rows * outputs);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Buffer weights, AllocateDevice(weight * sizeof(uint16_t), kWhat));
  LOCKSTEP_ASSIGN_OR_RETURN(const Buffer inputs, AllocateDevice(x * sizeof(uint16_t), kWhat));
  LOCKSTEP_ASSIGN_OR_RETURN(const Buffer outputs, AllocateDevice(y * sizeof(float), kWhat));
  for (const auto& [shape, rows_max] : layers) {
    const LinearPlan& plan = *linear(shape);
    for (int rows = 1; rows <= rows_max; ++rows) {
      rows = std::min(rows_max, plan.PaddedRows(rows));  // The most of its rung.
      LOCKSTEP_RETURN_IF_ERROR(plan.Run({.weight = weights.as<void>(),
                                         .bias = shape.bias ? weights.as<void>() : nullptr,
                                         .rows = rows,
                                         .x = inputs.as<void>(),
                                         .y = outputs.as<void>(),
                                         .workspace = workspace,
                                         .workspace_bytes = linear_scratch_bytes_},
                                        stream));
    }
  }
  return StatusOfCuda(cudaStreamSynchronize(stream), kWhat);
}

const LinearPlan* ModePlans::linear(const LinearShape& shape) const {
  const auto found = linear_.find(shape);
  return found == linear_.end() ? nullptr : &found->second;
}

int ModePlans::PaddedRows(int rows) const {
  int padded = rows;
  for (const auto& [shape, plan] : linear_) padded = std::max(padded, plan.PaddedRows(rows));
  return padded;
}

std::vector<LinearShape> ModePlans::shapes() const {
  std::vector<LinearShape> shapes;
  for (const auto& [shape, plan] : linear_) shapes.push_back(shape);
  return shapes;
}

const AttentionScratch& ModePlans::ScratchOf(int split_kv_size) const {
  const auto found = attention_.find(split_kv_size);
  LOCKSTEP_CHECK(found != attention_.end()) << "no scratch for splits of " << split_kv_size;
  return found->second;
}

ModePlans::Splits ModePlans::SplitsFor(const AttentionArgs& args) const {
  const int usual = args.split_kv_size;
  const int size = free_splits_.SizeFor(args.shape, usual);
  if (lender_ == nullptr) {
    const AttentionScratch& scratch = ScratchOf(size);
    return {.size = size, .limits = scratch.limits, .workspace = scratch.workspace};
  }
  const AttentionScratch& lent = lender_->ScratchOf(usual);
  if (const auto scratch = OtherSplits(lent, args.shape, size)) {
    return {.size = size, .limits = scratch->limits, .workspace = scratch->workspace};
  }
  return {.size = usual, .limits = lent.limits, .workspace = lent.workspace};
}

}  // namespace lockstep::kernels::cuda
