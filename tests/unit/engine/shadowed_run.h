#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "services/worker/engine/step_executor.h"

namespace lockstep::worker {

// What an engine over an executor delivers for a fixed set of requests: groups that share prompts
// and prefixes, of many lengths and kinds of sampling, some scored and some penalised.
struct ShadowedRun {
  std::map<uint64_t, std::string> transcripts;  // By ticket; floats by their bits.
  int64_t steps = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t shadows = 0;
  int64_t audit_mismatches = 0;
};

struct ShadowedRunOptions {
  StepExecutor* model = nullptr;
  int32_t vocabulary = 0;
  int64_t split = 0;
  int64_t shadow_every_steps = 0;
};

ShadowedRun RunShadowed(const ShadowedRunOptions& options);

}  // namespace lockstep::worker
