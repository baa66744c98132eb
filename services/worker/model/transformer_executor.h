#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/head_runner.h"
#include "services/worker/model/step_arrays.h"
#include "services/worker/model/transformer.h"

namespace lockstep::worker {

// Runs steps through the transformer. Owns the backend, the weights and the KV pool; all memory but
// that of logit biases, token counts and chosen ids is allocated at creation, for the largest step.
class TransformerExecutor final : public StepExecutor {
 public:
  struct Parts {
    std::unique_ptr<kernels::KernelSet> kernels;
    std::unique_ptr<Transformer> transformer;  // On `kernels`.
    std::unique_ptr<kernels::KvCache> kv;      // Of `kernels`.
  };
  struct Options {
    int sequences_max = 0;
    int context_tokens_max = 0;
    int vocabulary_sampled = 0;
  };
  static absl::StatusOr<std::unique_ptr<TransformerExecutor>> Create(Parts parts,
                                                                     const Options& options);

  absl::Status Execute(std::span<const StepSequence> sequences,
                       std::vector<StepSequenceResult>* results) override;
  uint64_t progress() const override { return parts_.transformer->layers_run(); }
  int kv_block_count() const override { return parts_.kv->shape().blocks; }
  int kv_block_tokens() const override { return parts_.kv->shape().block_tokens; }
  void PoisonKvBlock(int block) override { parts_.kv->Poison(block); }

  TransformerExecutor(Parts parts, const Options& options);  // Use Create.

 private:
  Parts parts_;
  StepArrays arrays_;
  HeadRunner head_;
};

}  // namespace lockstep::worker
