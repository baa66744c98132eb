#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/v1/types.pb.h"

namespace lockstep::gateway {

// What the cluster can serve, as the scheduler tells it: the bounds that requests are checked by.
struct ModelLimits {
  std::string model_name;
  int64_t vocabulary = 0;          // Rows of lm_head: ids are in [0, vocabulary).
  int64_t context_tokens_max = 0;  // Prompt plus generated tokens.
  int64_t kv_tokens_max = 0;       // What the largest worker can hold.
  int64_t message_bytes_max = 0;   // Largest answer.
  std::vector<int64_t> eos_ids;
  std::string generation_config_json;
  v1::ContractFingerprint fingerprint;
  std::string fingerprint_digest;
  int64_t weight_version = 0;
  std::string weights_digest;
};

}  // namespace lockstep::gateway
