#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "lockstep/v1/types.pb.h"
#include "services/gateway/model_limits.h"

// Defaults and ranges of the three parameter groups; the comments of types.proto are their text.
namespace lockstep::gateway {

// Fills unset fields, first from `model_defaults` (generation_config.json; empty: none). A field
// that is taken from there and is no number, or out of range, is an error that names the file. Of
// zero there is one: -0 becomes 0, since what computes alike has to have one receipt.
absl::Status ApplySamplingRules(const std::string& model_defaults, const ModelLimits& limits,
                                v1::SamplingParams* sampling);
// What the context leaves for generated tokens.
struct TokenRoom {
  int64_t tokens = 0;
  bool is_limit = true;  // Else more may be asked for, by any field.
};
// `generated` is what already exists.
absl::Status ApplyStopRules(const TokenRoom& room, int64_t generated, bool has_tokenizer,
                            const ModelLimits& limits, v1::StopOptions* stop);
// After both of the above: that what the request bans leaves an id to generate, of those that can
// be drawn at all.
absl::Status CheckAnIdIsLeft(const v1::SamplingParams& sampling, const v1::StopOptions& stop,
                             int64_t generated, const ModelLimits& limits);
absl::Status ApplyLogprobRules(int64_t prompt_tokens, const ModelLimits& limits,
                               v1::LogprobOptions* logprobs);

}  // namespace lockstep::gateway
