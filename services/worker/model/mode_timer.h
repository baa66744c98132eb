#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/step_arena.h"
#include "services/worker/model/step_arrays.h"
#include "services/worker/model/transformer.h"

namespace lockstep::worker {

// Shadows: the layers of a step, run in deterministic and in normal mode on inputs and a KV pool of
// their own, for their time. Shares the transformer's weights and activations, of which no step
// reads what an earlier one left. What comes after lm_head is the same in both modes and not run.
class ModeTimer {
  struct Private {};

 public:
  struct Options {
    int sequences_max = 0;
    int context_tokens_max = 0;
  };
  // Borrows both. `kernels` has shadows.
  static absl::StatusOr<std::unique_ptr<ModeTimer>> Create(Transformer* transformer,
                                                           kernels::KernelSet* kernels,
                                                           const Options& options);

  // Runs a step of this shape in each mode and waits. With `decode_rows` each sequence has one
  // token, rows of padding follow, the ops are captured, where the backend can, and the second of
  // two runs is timed, which waits for no host. What runs first of a size is not timed, since it
  // loads code.
  absl::StatusOr<ModeTimes> Time(std::span<const SequenceShape> step, int decode_rows,
                                 const base::Clock& clock);

  // For Create.
  ModeTimer(Private, Transformer* transformer, kernels::KernelSet* kernels, const Options& options)
      : transformer_(transformer), kernels_(kernels), options_(options) {}

 private:
  absl::Status Allocate();
  StepLimits LimitsOf(int context_tokens_max) const;
  // Lays the step out in inputs_.
  void Build(std::span<const SequenceShape> step, int decode_rows);
  void Enqueue();
  // With the ops enqueued one by one.
  absl::Status WarmUp(kernels::OpsMode mode);
  absl::StatusOr<absl::Duration> TimeOne(kernels::OpsMode mode, bool decodes,
                                         const base::Clock& clock);

  Transformer* const transformer_;
  kernels::KernelSet* const kernels_;
  const Options options_;
  std::unique_ptr<kernels::KvCache> kv_;
  StepArena inputs_;
  // By decode rows, or minus a power of two of prefill rows: which mode was the first in the last
  // step of this size, so that none always is.
  std::map<int, bool> normal_first_;

  // Of the step built last.
  kernels::StepShape shape_;
  kernels::StepInputs step_inputs_;
  int logits_rows_ = 0;
};

}  // namespace lockstep::worker
