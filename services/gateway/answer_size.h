#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "services/gateway/model_limits.h"
#include "services/gateway/request_validator.h"

// What of an answer has to fit into one message, and whether it does.
namespace lockstep::gateway {

// How an answer reaches its client.
enum class AnswerForm {
  kWhole,      // In one message: Generate.
  kScores,     // In one message, of a length known before: Score.
  kBySample,   // In parts of whole samples: GenerateMany.
  kAsItComes,  // In deltas, without a bound: GenerateStream.
};

// Of an answer that is there, as it will be sent.
struct AnswerBytes {
  std::vector<size_t> samples;
  size_t whole = 0;
};

// INVALID_ARGUMENT when even the smallest answer to `request` cannot be sent: no sample ends before
// its min_new_tokens, and without any stop none before its max_new_tokens. What might stop early is
// not refused for what it could become.
absl::Status CheckAnswerCanFit(const ValidRequest& request, AnswerForm form,
                               const ModelLimits& limits);

// RESOURCE_EXHAUSTED when an answer came out larger than it can be sent.
absl::Status CheckAnswerFits(const AnswerBytes& bytes, AnswerForm form, const ModelLimits& limits);

}  // namespace lockstep::gateway
