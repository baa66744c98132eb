#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "services/worker/engine/sequence_start.h"

namespace lockstep::worker {

// What a start is checked against.
struct StartLimits {
  int64_t split_kv_size = 0;
  int64_t context_tokens_max = 0;
  int64_t kv_tokens_max = 0;  // What an empty pool can hold.
  int32_t vocabulary = 0;
  bool has_tokenizer = false;
};

// InvalidArgument naming field, index and value of what is wrong with the plan, the ids or the
// lengths. OK promises that the sequence fits an empty worker.
absl::Status ValidateStart(const StartLimits& limits, const SequenceStart& start);

}  // namespace lockstep::worker
