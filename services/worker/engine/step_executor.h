#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "kernels/api/audit.h"
#include "kernels/api/sampling.h"
#include "services/worker/engine/step_output.h"

namespace lockstep::worker {

// One sequence's part of a step: tokens at consecutive positions, run through the model with their
// KV written to `blocks`. Spans belong to the caller and live until Launch returns.
struct StepSequence {
  std::span<const int32_t> tokens;  // At least one.
  // From 0 on: `tokens` is one token whose value is not looked at; it is the id that the step
  // launched before this one draws for its sequence of this index.
  int drawn_by = -1;
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
  // `counts` lacks the token to run, an output token that the step before draws.
  bool counts_drawn = false;

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

// What the time of one sequence's part of a step depends on.
struct SequenceShape {
  int64_t position = 0;  // Of its first token.
  int64_t tokens = 0;
  bool draws = false;
};

// How long the layers of one step take in either mode.
struct ModeTimes {
  absl::Duration deterministic;
  absl::Duration normal;
};

// Steps that may be launched and not yet collected.
inline constexpr int kStepsInFlightMax = 2;

// Runs steps on a device: the boundary between what is planned and what is computed. Used by one
// thread, the engine loop's. Two implementations: the transformer, and a null model for measuring
// everything around it.
//
// Steps run in the order of their launches, so a block that one step writes may be given to another
// sequence in the next. An error means that the device is lost: the worker gives up its lease and
// ends. A sequence with bad values gets its own `error`, its neighbours none.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Begins a step; at most kStepsInFlightMax are in flight.
  virtual absl::Status Launch(std::span<const StepSequence> sequences) = 0;
  // Waits for the oldest step in flight. Results are parallel to its sequences.
  virtual absl::Status Collect(std::vector<StepSequenceResult>* results) = 0;
  // One step by itself.
  absl::Status Execute(std::span<const StepSequence> sequences,
                       std::vector<StepSequenceResult>* results) {
    LOCKSTEP_RETURN_IF_ERROR(Launch(sequences));
    return Collect(results);
  }
  // Whether a launched step runs beside its caller, so that launching the next one before this one
  // is collected saves time.
  virtual bool asynchronous() const { return false; }
  // Counts work done inside steps, so that a long step can be told from a hung one. Thread-safe;
  // never goes down.
  virtual uint64_t progress() const { return 0; }
  // What the audit of the device has looked at so far. A difference ends the engine like a lost
  // device, by the status of a later Collect.
  virtual kernels::AuditCounts audit() const { return {}; }
  // Whether TimeModes works: there is a normal mode to compare with, and it was asked for.
  virtual bool times_modes() const { return false; }
  // Runs the layers of a step of this shape in both modes and waits for them, while no step is in
  // flight. Inputs and KV are its own: what steps read and write stays as it is.
  virtual absl::StatusOr<ModeTimes> TimeModes(std::span<const SequenceShape> /*step*/,
                                              const base::Clock& /*clock*/) {
    return absl::UnimplementedError("there is no other mode to compare with");
  }
  // Why the device is lost, as soon as that is known: a step in flight may be stuck in it.
  // Thread-safe.
  virtual absl::Status health() const { return absl::OkStatus(); }
  virtual int kv_block_count() const = 0;
  virtual int kv_block_tokens() const = 0;
  // Fills a block with NaN; tests use it to show that nothing reads foreign or stale KV.
  virtual void PoisonKvBlock(int block) = 0;
};

}  // namespace lockstep::worker
