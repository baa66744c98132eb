#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"
#include "kernels/cuda/backend/certified_layers.h"
#include "kernels/cuda/backend/free_splits.h"
#include "kernels/cuda/backend/step_scratch.h"
#include "kernels/cuda/linear/certificate.h"
#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/cuda/linear/lt_matmul.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {

// What the ops of one mode run, for all steps within the bounds that it was made for.
class ModePlans {
 public:
  ModePlans() = default;  // No op has a plan.
  static absl::StatusOr<ModePlans> Create(cublasLtHandle_t handle, const CertificateTable& table,
                                          std::span<const LayerToCertify> layers);
  // Deterministic: all splits are the contract's.
  absl::Status AddAttention(const StepBounds& bounds);
  // Splits of other sizes that these plans were made for keep their scratch.
  void KeepAttention(ModePlans earlier) { attention_.merge(earlier.attention_); }
  // Normal mode: splits of the sizes that are fastest here.
  absl::Status AddFreeAttention(const StepBounds& bounds, const AttentionSchedule& schedule,
                                cudaStream_t stream);
  // The same on the scratch of other plans, which outlive these and whose attention never runs at
  // once with theirs. A step of which it does not hold the splits takes the contract's.
  absl::Status ShareFreeAttention(const StepBounds& bounds, const AttentionSchedule& schedule,
                                  cudaStream_t stream, const ModePlans& other);

  // Runs every product once, so that no step has to load one. Where ranks wait in kernels, a rank
  // that loads waits for them, and they for it: at a time when none does.
  absl::Status LoadProducts(std::span<const LayerToCertify> layers, void* workspace,
                            cudaStream_t stream) const;

  // Null for a shape that was not planned for.
  const LinearPlan* linear(const LinearShape& shape) const;
  int PaddedRows(int rows) const;
  size_t LinearScratchBytes() const { return linear_scratch_bytes_; }
  std::vector<LinearShape> shapes() const;

  // Size of splits and scratch of a step.
  struct Splits {
    int size = 0;
    AttentionLimits limits;
    AttentionWorkspace workspace;
  };
  // The contract's size is one that was planned for.
  Splits SplitsFor(const AttentionArgs& args) const;

 private:
  const AttentionScratch& ScratchOf(int split_kv_size) const;

  std::map<LinearShape, LinearPlan> linear_;
  size_t linear_scratch_bytes_ = 0;
  FreeSplits free_splits_;                     // Empty but in normal mode.
  std::map<int, AttentionScratch> attention_;  // By size of splits.
  const ModePlans* lender_ = nullptr;          // Who has the scratch, where these have none.
};

}  // namespace lockstep::kernels::cuda
