#pragma once

#include <cstdint>

#include "services/worker/engine/step_output.h"

namespace lockstep::worker {

// Positions [begin, end) of a block that has `count` of them; arrays that are empty stay empty.
struct LogprobRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count = 0;
};

// Appends a range of `from` to `to`, which then has the same arrays, each longer by the range.
void AppendLogprobs(const LogprobBlock& from, const LogprobRange& range, LogprobBlock* to);
// Whether all arrays have equal bits; a NaN equals itself.
bool SameBits(const LogprobBlock& a, const LogprobBlock& b);
// Leaves raw and scaled logprobs alone.
void DropDetails(LogprobBlock* block);
// Leaves everything else alone.
void DropTokenLogprobs(LogprobBlock* block);

}  // namespace lockstep::worker
