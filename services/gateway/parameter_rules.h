#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "lockstep/v1/types.pb.h"
#include "services/gateway/model_limits.h"

// Defaults and ranges of the three parameter groups; the comments of types.proto are their text.
namespace lockstep::gateway {

// Fills unset fields, first from `model_defaults` (generation_config.json; empty: none).
absl::Status ApplySamplingRules(const std::string& model_defaults, const ModelLimits& limits,
                                v1::SamplingParams* sampling);
// `room` is what the context leaves for generated tokens, `generated` what already exists.
absl::Status ApplyStopRules(int64_t room, int64_t generated, bool has_tokenizer,
                            const ModelLimits& limits, v1::StopOptions* stop);
// After both of the above: that what the request bans leaves an id to generate.
absl::Status CheckAnIdIsLeft(const v1::SamplingParams& sampling, const v1::StopOptions& stop,
                             int64_t generated, int64_t vocabulary);
absl::Status ApplyLogprobRules(int64_t prompt_tokens, const ModelLimits& limits,
                               v1::LogprobOptions* logprobs);

}  // namespace lockstep::gateway
