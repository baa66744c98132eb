#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "services/worker/model/model_config.h"

// What one of several ranks holds of a model: whole q heads with the kv heads that they read, equal
// runs of the ffn, and a run of the vocabulary's rows of lm_head. Everything else is on every rank.
namespace lockstep::worker {

struct RankPart {
  int rank = 0;
  int ranks = 1;
};

// Half-open.
struct Run {
  int64_t begin = 0;
  int64_t end = 0;
};

// Whether `ranks` can share the model: a power of two up to reduction_segments, so that every rank
// owns a subtree of each sum; kv heads that divide by it, or the other way round, when each kv head
// is held by several ranks. INVALID_ARGUMENT names the numbers.
absl::Status CheckRanks(const ModelConfig& config, int reduction_segments, int ranks);

// The decoder that one rank runs: heads and ffn are its own, all else is the model's.
ModelConfig PartOf(const ModelConfig& config, const RankPart& part);

// Heads, ffn inputs or rows that belong to the rank; `whole` divides by ranks, or is fewer.
Run RunOf(int64_t whole, const RankPart& part);
// Rows of lm_head: multiples of 64, so that a rank's logits are aligned like any matrix.
Run VocabularyRun(int vocabulary, const RankPart& part);

}  // namespace lockstep::worker
