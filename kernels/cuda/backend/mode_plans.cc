#include "kernels/cuda/backend/mode_plans.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/cuda/contract.h"

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
  const AttentionScratch& memory = other.attention_.at(bounds.split_kv_size);
  for (const int size : free_splits_.Sizes(bounds.split_kv_size)) {
    attention_[size] = OtherSplits(memory, WithSplits(bounds, size));
  }
  return absl::OkStatus();
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

ModePlans::Splits ModePlans::SplitsFor(const AttentionArgs& args) const {
  const int size = free_splits_.SizeFor(args.shape, args.split_kv_size);
  const AttentionScratch& scratch = attention_.at(size);
  if (args.shape.blocks_max * kPageTokens <= scratch.limits.splits_max * size) {
    return {.size = size, .scratch = &scratch};
  }
  return {.size = args.split_kv_size, .scratch = &attention_.at(args.split_kv_size)};
}

}  // namespace lockstep::kernels::cuda
