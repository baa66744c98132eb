#include "services/worker/engine/start_validation.h"

#include <span>
#include <string_view>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "kernels/api/sampling.h"

namespace lockstep::worker {
namespace {

absl::Status CheckId(int32_t id, std::string_view field, size_t index, int32_t vocabulary) {
  if (id >= 0 && id < vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s[%d] is %d, outside the vocabulary [0, %d)",
                                                    field, index, id, vocabulary));
}

absl::Status CheckIds(std::span<const int32_t> ids, std::string_view field, int32_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(CheckId(ids[i], field, i, vocabulary));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(int64_t value, std::string_view field, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d, outside [%d, %d]", field, value, low, high));
}

absl::Status CheckAllIds(int32_t vocabulary, const SequenceStart& start) {
  const SequenceParameters& parameters = start.parameters;
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(start.prompt_ids, "prompt_ids", vocabulary));
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(start.generated_ids, "generated_ids", vocabulary));
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(parameters.stop_ids, "stop_ids", vocabulary));
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(parameters.chosen_ids, "chosen_ids", vocabulary));
  for (size_t i = 0; i < parameters.logit_bias.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(CheckId(parameters.logit_bias[i].id, "logit_bias", i, vocabulary));
  }
  return absl::OkStatus();
}

absl::Status CheckPlan(const StartLimits& limits, const SequenceStart& start) {
  if (start.plan.split_kv_size != limits.split_kv_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the plan cuts at multiples of %d, but this worker's split is %d: offset "
                        "%d would be misaligned",
                        start.plan.split_kv_size, limits.split_kv_size, start.plan.split_kv_size));
  }
  const int64_t length = static_cast<int64_t>(start.prompt_ids.size() + start.generated_ids.size());
  if (start.plan.length != length) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the plan ends at offset %d, but prompt and generated ids are %d tokens",
                        start.plan.length, length));
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const StartLimits& limits, const SequenceStart& start) {
  const SequenceParameters& parameters = start.parameters;
  const int64_t prompt = static_cast<int64_t>(start.prompt_ids.size());
  const int64_t generated = static_cast<int64_t>(start.generated_ids.size());
  if (prompt == 0) return absl::InvalidArgumentError("prompt_ids is empty");
  // The prompt alone first, so that the next range is not a negative one.
  if (prompt > limits.context_tokens_max ||
      parameters.max_new_tokens > limits.context_tokens_max - prompt) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d prompt tokens and max_new_tokens %d exceed the context of %d", prompt,
                        parameters.max_new_tokens, limits.context_tokens_max));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRange(parameters.max_new_tokens, "max_new_tokens", generated,
                                      limits.context_tokens_max - prompt));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange(parameters.min_new_tokens, "min_new_tokens", 0, parameters.max_new_tokens));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange(start.deliver_output_from, "deliver_output_from", 0, generated));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange(start.deliver_prompt_from, "deliver_prompt_from", 0, prompt));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange(parameters.top_count, "top_count", 0, kernels::kTopLogprobsMax));
  if (prompt + parameters.max_new_tokens > limits.kv_tokens_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d prompt tokens and max_new_tokens %d need more KV than the %d tokens "
                        "of this worker",
                        prompt, parameters.max_new_tokens, limits.kv_tokens_max));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateStart(const StartLimits& limits, const SequenceStart& start) {
  LOCKSTEP_RETURN_IF_ERROR(CheckPlan(limits, start));
  LOCKSTEP_RETURN_IF_ERROR(CheckLengths(limits, start));
  LOCKSTEP_RETURN_IF_ERROR(CheckAllIds(limits.vocabulary, start));
  if (!start.parameters.stop_strings.empty() && !limits.has_tokenizer) {
    return absl::InvalidArgumentError("stop_strings need a tokenizer, and this worker has none");
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
