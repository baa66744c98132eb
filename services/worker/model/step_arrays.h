#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/api/step.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/step_arena.h"

namespace lockstep::worker {

struct StepLimits {
  int rows_max = 0;
  int sequences_max = 0;
  int context_tokens_max = 0;
  int kv_blocks = 0;
  int kv_block_tokens = 0;
  int vocabulary = 0;
};

// A step's StepInputs, laid out in an arena. The planner keeps to the limits; a step beyond them is
// a broken invariant and ends the process.
class StepArrays {
 public:
  explicit StepArrays(const StepLimits& limits) : limits_(limits) {}
  // What Build takes of an arena at most.
  size_t BytesMax() const;

  // Describes the step until the next call. With `decode_rows` every sequence has one token, and
  // rows of padding follow until there are so many. `drawn_slots` says for each sequence of the
  // step before where its drawn id is.
  void Build(std::span<const StepSequence> sequences, int decode_rows,
             std::span<const int32_t> drawn_slots, StepArena* arena);

  const kernels::StepShape& shape() const { return shape_; }
  // But for drawn_ids.
  const kernels::StepInputs& inputs() const { return inputs_; }
  // First row of each sequence, and the row count.
  std::span<const int32_t> query_start() const { return query_start_; }

 private:
  int BlocksMax() const;
  int BlocksOf(const StepSequence& sequence) const;
  void CheckSequence(const StepSequence& sequence) const;

  const StepLimits limits_;
  kernels::StepShape shape_;
  kernels::StepInputs inputs_;
  std::span<const int32_t> query_start_;
};

}  // namespace lockstep::worker
