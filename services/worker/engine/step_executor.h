#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/sampling.h"
#include "services/worker/engine/step_output.h"

namespace lockstep::worker {

// One sequence's part of a step: tokens at consecutive positions, run through the model with their
// KV written to `blocks`. Spans belong to the caller and live until Execute returns.
struct StepSequence {
  std::span<const int32_t> tokens;  // At least one.
  int64_t position = 0;             // Absolute position of tokens[0].
  std::span<const int32_t> blocks;  // KV blocks of positions 0 .. position + tokens - 1.

  // Scoring: the logprob of score_targets[i], given everything up to and including row
  // score_begin + i, is wanted. Rows are counted within `tokens`.
  int score_begin = 0;
  std::span<const int32_t> score_targets;
  bool score_details = false;  // Top, chosen and entropy for scored rows too.

  // Drawing the next token from the last row.
  bool sample = false;
  kernels::SamplingRow sampling;  // Its bias and count ranges are set by the executor.
  std::span<const kernels::IdBias> biases;
  std::span<const kernels::IdCount> counts;

  // Logprobs of the drawn token, with details; without it there are none. Scored rows always have
  // theirs.
  bool logprobs = true;
  float temperature = 1;
  int top_count = 0;
  std::span<const int32_t> chosen_ids;
  bool entropy = false;
};

struct StepSequenceResult {
  int32_t sampled_id = -1;
  kernels::SampleError error = kernels::SampleError::kNone;
  LogprobBlock sampled;  // One position, when `sample` and no error.
  LogprobBlock scored;   // score_targets positions.
};

// Runs steps on a device: the boundary between what is planned and what is computed. Used by one
// thread, the engine loop's. Two implementations: the transformer, and a null model for measuring
// everything around it.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Results are parallel to `sequences`. An error means that the device is lost: the worker gives
  // up its lease and ends. A sequence with bad values gets its own `error`, its neighbours none.
  virtual absl::Status Execute(std::span<const StepSequence> sequences,
                               std::vector<StepSequenceResult>* results) = 0;
  // Counts work done inside steps, so that a long step can be told from a hung one. Thread-safe;
  // never goes down.
  virtual uint64_t progress() const { return 0; }
  virtual int kv_block_count() const = 0;
  virtual int kv_block_tokens() const = 0;
  // Fills a block with NaN; tests use it to show that nothing reads foreign or stale KV.
  virtual void PoisonKvBlock(int block) = 0;
};

}  // namespace lockstep::worker
