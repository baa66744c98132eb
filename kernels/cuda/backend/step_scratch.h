#pragma once

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

// The memory of `scratch`, which owns it, laid out for the splits of `bounds`, for steps that never
// run at once with its own. As many splits as it has at most: `limits` say how many.
AttentionScratch OtherSplits(const AttentionScratch& scratch, const StepBounds& bounds);

}  // namespace lockstep::kernels::cuda
