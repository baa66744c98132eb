#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "services/worker/engine/step_executor.h"

namespace lockstep::worker {

// A model without a model: ids come from a hash of (sub-seed, position), logprobs from a hash of
// (id, position), so that scoring an answer gives the logprobs that drawing it gave. Honours bans
// (a bias of -infinity); every other parameter leaves the ids as they are. For measuring and
// testing what is around a model. It has no KV: poisoning a block does nothing.
class NullExecutor final : public StepExecutor {
 public:
  struct Options {
    int vocabulary = 0;  // Ids that can be drawn.
    int kv_blocks = 0;
    int kv_block_tokens = 0;
  };
  explicit NullExecutor(const Options& options) : options_(options) {}

  absl::Status Launch(std::span<const StepSequence> sequences) override;
  absl::Status Collect(std::vector<StepSequenceResult>* results) override;
  int kv_block_count() const override { return options_.kv_blocks; }
  int kv_block_tokens() const override { return options_.kv_block_tokens; }
  void PoisonKvBlock(int) override {}

 private:
  void Draw(const StepSequence& sequence, StepSequenceResult* result) const;
  void AppendLogprobs(const StepSequence& sequence, int32_t id, int64_t position, bool details,
                      LogprobBlock* block) const;

  const Options options_;
  std::deque<std::vector<StepSequenceResult>> in_flight_;  // Oldest first.
};

}  // namespace lockstep::worker
