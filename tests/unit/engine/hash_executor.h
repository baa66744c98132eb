#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/worker/engine/step_executor.h"

namespace lockstep::worker {

// A model whose every output is a hash of the whole prefix, and a KV pool that remembers which
// prefix each of its slots was written under. So a stale or foreign block, a chunk that starts at
// the wrong place, a lost token or a wrong noise position changes outputs, and most of these are
// also reported by name. Checks in every step:
//  - the KV that a row attends to is one unbroken chain from position 0;
//  - no block is written by one sequence and used by another in the same step;
//  - blocks cover the tokens exactly, ids are in the vocabulary.
class HashExecutor final : public StepExecutor {
 public:
  struct Options {
    int block_count = 0;
    int block_tokens = 16;
    int vocabulary = 64;
    int32_t nan_after_id = -1;   // A row with this token has no finite logits.
    int64_t fails_at_step = -1;  // Counted from 0: the device is lost then.
    bool asynchronous = false;   // Says so; a step runs in its launch in any case.
    // How long a step of a shape takes in either mode; null: there is no other mode.
    std::function<absl::StatusOr<ModeTimes>(std::span<const SequenceShape>)> mode_times;
    // Planted faults, for tests of the tests.
    bool keys_noise_by_step = false;
  };
  explicit HashExecutor(const Options& options);

  absl::Status Launch(std::span<const StepSequence> sequences) override;
  absl::Status Collect(std::vector<StepSequenceResult>* results) override;
  bool asynchronous() const override { return options_.asynchronous; }
  // As a device would audit one row a step, and find why it failed.
  kernels::AuditCounts audit() const override {
    return {.rows = static_cast<uint64_t>(steps_), .mismatches = failed_ ? uint64_t{1} : 0};
  }
  bool times_modes() const override { return options_.mode_times != nullptr; }
  absl::StatusOr<ModeTimes> TimeModes(std::span<const SequenceShape> step,
                                      const base::Clock& clock) override;
  int kv_block_count() const override { return options_.block_count; }
  int kv_block_tokens() const override { return options_.block_tokens; }
  void PoisonKvBlock(int block) override;

  // What was found wrong; empty in a right engine.
  const std::vector<std::string>& violations() const { return violations_; }
  int64_t steps() const { return steps_; }
  int64_t draws() const { return draws_; }
  // Rows whose token was drawn by a step that was still in flight.
  int64_t rows_drawn_by() const { return rows_drawn_by_; }
  int64_t sequences_max() const { return sequences_max_; }
  int64_t prefill_rows_max() const { return prefill_rows_max_; }

 private:
  struct Slot {
    uint64_t prefix = 0;  // Hash of all tokens up to this one; 0 is poison.
    int32_t token = -1;
  };

  // With the ids that the step before has drawn put in.
  std::vector<StepSequence> Resolve(std::span<const StepSequence> sequences);
  Slot& SlotAt(const StepSequence& sequence, int64_t position);
  // Writes the KV of the step's tokens; returns the prefix hash of each row.
  std::vector<uint64_t> Write(const StepSequence& sequence);
  void CheckChain(const StepSequence& sequence, const std::vector<uint64_t>& prefixes);
  void CheckWrites(std::span<const StepSequence> sequences);
  StepSequenceResult Compute(const StepSequence& sequence, const std::vector<uint64_t>& prefixes);
  int32_t Draw(const StepSequence& sequence, uint64_t prefix) const;
  void AppendLogprobs(const StepSequence& sequence, uint64_t prefix, int32_t target, bool details,
                      LogprobBlock* block) const;

  const Options options_;
  std::vector<Slot> slots_;
  std::vector<std::string> violations_;
  std::deque<std::vector<StepSequenceResult>> in_flight_;  // Oldest first.
  std::vector<int32_t> drawn_;                             // By the last step.
  std::vector<int32_t> resolved_;
  int64_t rows_drawn_by_ = 0;
  int64_t draws_ = 0;
  int64_t steps_ = 0;
  bool failed_ = false;
  int64_t sequences_max_ = 0;
  int64_t prefill_rows_max_ = 0;
};

}  // namespace lockstep::worker
