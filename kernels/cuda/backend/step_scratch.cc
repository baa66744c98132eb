#include "kernels/cuda/backend/step_scratch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

int SplitsOf(int context_tokens, int split_kv_size) {
  return (context_tokens + split_kv_size - 1) / split_kv_size;
}

AttentionLimits LimitsOf(const StepBounds& bounds) {
  // Whole pages: the block table's last page may end behind the context.
  const int context_tokens =
      (bounds.context_tokens_max + kPageTokens - 1) / kPageTokens * kPageTokens;
  return {.rows = bounds.rows_max,
          .sequences = bounds.sequences_max,
          .splits_max = SplitsOf(context_tokens, bounds.split_kv_size),
          .q_heads = bounds.q_heads,
          .kv_heads = bounds.kv_heads,
          .head_dim = bounds.head_dim};
}

}  // namespace

absl::Status CheckAttention(const StepBounds& bounds) {
  if (bounds.head_dim != 64 && bounds.head_dim != 128) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim = ", bounds.head_dim, ": this backend's attention has heads of 64 and of 128"));
  }
  if (bounds.q_heads / bounds.kv_heads > kUnitRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        bounds.q_heads, " q heads on ", bounds.kv_heads,
        " kv heads: this backend's attention has at most ", kUnitRows, " q heads on a kv head"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionScratch> MakeAttentionScratch(const StepBounds& bounds) {
  AttentionScratch scratch;
  scratch.limits = LimitsOf(bounds);
  LOCKSTEP_ASSIGN_OR_RETURN(scratch.memory, AllocateDevice(AttentionWorkspaceBytes(scratch.limits),
                                                           "scratch of attention"));
  scratch.workspace = LayOutAttentionWorkspace(scratch.limits, scratch.memory.as<void>());
  return scratch;
}

std::optional<AttentionScratch> OtherSplits(const AttentionScratch& scratch, const StepShape& step,
                                            int split_kv_size) {
  AttentionScratch other;
  other.limits = scratch.limits;
  other.limits.rows = step.rows;
  other.limits.sequences = step.sequences;
  other.limits.splits_max = SplitsOf(step.blocks_max * kPageTokens, split_kv_size);
  if (AttentionWorkspaceBytes(other.limits) > scratch.memory.bytes()) return std::nullopt;
  other.workspace = LayOutAttentionWorkspace(other.limits, scratch.memory.as<void>());
  return other;
}

}  // namespace lockstep::kernels::cuda
