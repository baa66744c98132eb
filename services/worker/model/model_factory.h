#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "kernels/api/certification.h"
#include "kernels/api/collective.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/model_name.h"
#include "services/worker/model/rank_part.h"

namespace lockstep::worker {

struct ModelOptions {
  std::string model;  // A Hugging Face directory, or as model_name.h says.
  int reduction_segments = 1;
  int split_kv_size = 256;     // A multiple of the backend's KV block.
  int64_t kv_bytes = 0;        // 0: 256 MiB of the host, or what a device has left.
  int sequences_max = 256;     // In one step.
  int chunk_tokens = 512;      // Prefill tokens a step; a multiple of split_kv_size.
  int context_tokens_max = 0;  // Of one sequence; 0 is the model's own limit.
  int vocabulary_sampled = 0;  // Ids that can be drawn; 0 is every row of lm_head.
  // Logits held at once; a step that needs more makes them in pieces. 0: 96 MiB of the host, 1 GiB
  // of a device, so that a batch of hundreds is one piece.
  size_t logits_bytes_max = 0;
  // Decode steps run as captured, where the backend can. Off to compare.
  bool captures = true;
  RankPart part;  // Set by LoadModelOnRanks.
};

// What the rest of a worker has to know about its model.
struct ModelFacts {
  std::string name;        // The directory's last component, a random model's shape, or "null".
  std::string directory;   // Where tokenizer.json is; empty without one.
  int32_t vocabulary = 0;  // Rows of lm_head: the range of valid ids.
  std::vector<int32_t> eos_ids;
  std::string generation_config_json;  // As stored; empty when there is none.
  int64_t context_tokens_max = 0;      // In effect: prompt plus generated tokens.
};

// What this room knows of the contract fingerprint; the worker adds mode and tokenizer.
struct FingerprintParts {
  int contract_version = 0;
  bool deterministic = true;  // False in normal mode.
  std::string backend;
  std::string architecture;
  int reduction_segments = 0;
  int split_kv_size = 0;
  int kv_block_tokens = 0;  // Keys that attention adds as one.
  std::string rope_digest;
  std::string logits_type;
  std::string kv_type;
  int vocabulary_sampled = 0;
  std::string model_digest;
};

struct LoadedModel {
  std::unique_ptr<StepExecutor> executor;
  ModelFacts facts;
  FingerprintParts fingerprint;
  base::Digest128 weights_digest;
};

// Loads a model onto a backend, which the executor then owns; the null model needs none, and
// ignores one. NOT_FOUND without a model there, INVALID_ARGUMENT for a file or an option that is
// refused (by name), RESOURCE_EXHAUSTED when it does not fit.
absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      std::unique_ptr<kernels::KernelSet> kernels);

// The same over the ranks of `group`, of which each has a backend of its own: `make_kernels` is
// called on its thread, and gives it the rank's end of `group`. kv_bytes is of each rank. Which
// number of ranks it was reaches no bit and no digest. INVALID_ARGUMENT for a model that so many
// cannot share.
using MakeRankKernels =
    std::function<absl::StatusOr<std::unique_ptr<kernels::KernelSet>>(int rank)>;
absl::StatusOr<LoadedModel> LoadModelOnRanks(const ModelOptions& options,
                                             std::shared_ptr<kernels::CollectiveGroup> group,
                                             const MakeRankKernels& make_kernels);

// The linear layers that LoadModel would prepare on a device, each with the most rows of a call.
// Reads no weights. Fails like LoadModel; INVALID_ARGUMENT for the null model, which has none.
absl::StatusOr<std::vector<kernels::LinearLayer>> LinearLayersOf(const ModelOptions& options);

}  // namespace lockstep::worker
