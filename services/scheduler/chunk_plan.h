#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// The most that a sequence may have to prefill under `plan`, after it was preempted as late as
// possible: all that it was given and all that it may still generate.
struct CutBounds {
  ChunkPlan plan;
  int64_t kv_block_tokens = 0;
  int64_t length_max = 0;  // >= plan.length; 0 where the plan's length is not known.
};

// OK when `cut` is allowed: its begin is a multiple of the KV block, its end a multiple of the
// split or the length in force, which lies in [plan.length, length_max]. OUT_OF_RANGE names the
// offending number otherwise.
absl::Status CheckCut(const CutBounds& bounds, const Cut& cut);

}  // namespace lockstep::scheduler
