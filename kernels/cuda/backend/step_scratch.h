#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/kernel_set.h"
#include "kernels/cuda/attention_workspace.h"

namespace lockstep::kernels::cuda {

// What attention needs beside its arguments, for all steps within `bounds`.
struct AttentionScratch {
  AttentionLimits limits;
  Buffer memory;
  AttentionWorkspace workspace;
};

// INVALID_ARGUMENT names the head counts or sizes that attention has no kernel for.
absl::Status CheckAttention(const StepBounds& bounds);

absl::StatusOr<AttentionScratch> MakeAttentionScratch(const StepBounds& bounds);

// The memory of `scratch`, which owns it, laid out for steps of one shape with splits of another
// size. None of them runs at once with a step of `scratch`. Nothing where there is too little.
std::optional<AttentionScratch> OtherSplits(const AttentionScratch& scratch, const StepShape& step,
                                            int split_kv_size);

}  // namespace lockstep::kernels::cuda
