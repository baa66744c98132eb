#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/head_runner.h"
#include "services/worker/model/mode_timer.h"
#include "services/worker/model/step_arena.h"
#include "services/worker/model/step_arrays.h"
#include "services/worker/model/transformer.h"

namespace lockstep::worker {

// Runs steps through the transformer. Owns the backend, the weights and the KV pool; all memory but
// that of logit biases, token counts and chosen ids is allocated at creation, for the largest step.
//
// A step in which every sequence draws from one row is padded up to one of a few row counts. From
// the second such step of a count on, its ops are captured and run again, where the backend can.
class TransformerExecutor final : public StepExecutor {
 public:
  struct Parts {
    std::unique_ptr<kernels::KernelSet> kernels;
    std::unique_ptr<Transformer> transformer;  // On `kernels`.
    std::unique_ptr<kernels::KvCache> kv;      // Of `kernels`.
    std::unique_ptr<ModeTimer> mode_timer;     // Null where `kernels` has no shadows.
  };
  struct Options {
    int sequences_max = 0;
    int context_tokens_max = 0;
    int vocabulary_sampled = 0;
    bool captures = true;  // Off: every op of every step is enqueued anew.
  };
  static absl::StatusOr<std::unique_ptr<TransformerExecutor>> Create(Parts parts,
                                                                     const Options& options);
  ~TransformerExecutor() override;

  absl::Status Launch(std::span<const StepSequence> sequences) override;
  absl::Status Collect(std::vector<StepSequenceResult>* results) override;
  bool asynchronous() const override { return parts_.kernels->asynchronous(); }
  uint64_t progress() const override { return parts_.transformer->layers_run(); }
  kernels::AuditCounts audit() const override { return parts_.kernels->audit(); }
  bool times_modes() const override { return parts_.mode_timer != nullptr; }
  absl::StatusOr<ModeTimes> TimeModes(std::span<const SequenceShape> step,
                                      const base::Clock& clock) override;
  int kv_block_count() const override { return parts_.kv->shape().blocks; }
  int kv_block_tokens() const override { return parts_.kv->shape().block_tokens; }
  void PoisonKvBlock(int block) override { parts_.kv->Poison(block); }

  // Steps that ran as captured.
  int64_t replays() const { return replays_; }

  TransformerExecutor(Parts parts, const Options& options);  // Use Create.

 private:
  // What a captured step depends on: its rows, which logprobs it computes, and whether it counts
  // what the step before has drawn.
  using DecodeShape = std::tuple<int, HeadRunner::Logprobs, bool>;
  struct CapturedDecode {
    std::unique_ptr<kernels::CapturedOps> ops;  // Null for a shape that was seen once.
    int replays = 0;
  };

  // Rows of the step with padding, or 0 for one that is not such a step.
  int DecodeRows(std::span<const StepSequence> sequences) const;
  // The same of a step that is one.
  int PaddedRows(size_t sequences) const;
  void EnqueueStep();
  void EnqueueDecode(const DecodeShape& shape);

  const Options options_;
  Parts parts_;
  StepArena inputs_;
  StepArrays arrays_;
  HeadRunner head_;
  std::array<uint64_t, kStepsInFlightMax> marks_ = {};
  uint64_t launched_ = 0;
  uint64_t collected_ = 0;
  const int32_t* drawn_ids_ = nullptr;  // Of the step before.
  std::map<DecodeShape, CapturedDecode> captured_;
  int captured_generation_ = 0;
  int64_t replays_ = 0;
};

// The row count that a decode step of `sequences` is padded to: few enough that each is captured,
// and near enough that padding costs little.
int PaddedDecodeRows(int sequences, int sequences_max);

}  // namespace lockstep::worker
