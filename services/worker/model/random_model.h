#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/worker/model/model_config.h"

namespace lockstep::worker {

// A model of a published shape with drawn weights: for measuring and testing without a download.
struct RandomModel {
  std::string shape;  // "qwen3-8b"
  uint64_t seed = 0;
  ModelConfig config;
};

// Reads random:SHAPE or random:SHAPE@SEED, seed 0 by default. INVALID_ARGUMENT names the part that
// is wrong, and the shapes there are.
absl::StatusOr<RandomModel> ParseRandomModel(std::string_view model);

}  // namespace lockstep::worker
