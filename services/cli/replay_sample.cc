#include "services/cli/replay_sample.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/packed_array.h"
#include "common/base/status_macros.h"
#include "services/cli/sample_end.h"
#include "services/client/arrays.h"
#include "services/client/sample_bits.h"

namespace lockstep::cli {
namespace {

// Leaves the first `positions` of `of` in every array; each holds the same count a position.
void Shorten(int64_t positions, int64_t of, v1::LogprobArrays* arrays) {
  for (std::string* bytes : {arrays->mutable_raw(), arrays->mutable_scaled(),
                             arrays->mutable_entropy(), arrays->mutable_top_ids(),
                             arrays->mutable_top_logprobs(), arrays->mutable_chosen_logprobs()}) {
    bytes->resize(bytes->size() / static_cast<size_t>(of) * static_cast<size_t>(positions));
  }
}

}  // namespace

v1::GenerateRequest ReplayRequest(const Record& record, const v1::Sample& sample) {
  v1::GenerateRequest request = record.request;
  request.clear_request_id();
  request.clear_n();
  request.clear_generated_ids();
  request.set_first_sample_index(sample.index());
  request.set_exact_seed(sample.sub_seed());
  *request.mutable_prompt_ids()->mutable_ids() =
      client::ToIdField(client::ReadIds(record.response.prompt_ids()));
  // Prompt logprobs are in the first sample of an answer only.
  if (sample.prompt_logprobs().raw().empty()) request.mutable_logprobs()->clear_prompt_from();
  if (EndedEarly(sample)) {
    const int64_t tokens = base::PackedCount(sample.token_ids());
    v1::StopOptions* stop = request.mutable_stop();
    stop->set_max_new_tokens(tokens);
    if (stop->has_min_new_tokens()) {
      stop->set_min_new_tokens(std::min(stop->min_new_tokens(), tokens));
    }
  }
  return request;
}

std::string Replayed::Text() const {
  if (difference.has_value()) return *difference;
  if (positions == 0) return "holds no position, so nothing was compared";
  if (prefix) {
    return absl::StrCat("was cut short; its ", positions,
                        " positions are equal in every bit to the beginning of the whole answer");
  }
  return absl::StrCat("equal in every bit; receipt ", same_receipt ? "equal" : "differs");
}

absl::StatusOr<Replayed> CompareReplay(const v1::Sample& expected,
                                       const absl::StatusOr<v1::GenerateResponse>& answer) {
  LOCKSTEP_ASSIGN_OR_RETURN(v1::Sample actual, WholeSample(answer));
  const int64_t tokens = base::PackedCount(expected.token_ids());
  Replayed replayed = {.positions = tokens + base::PackedCount(expected.prompt_logprobs().raw()),
                       .prefix = EndedEarly(expected),
                       .same_receipt = expected.receipt().digest() == actual.receipt().digest()};
  if (replayed.prefix) {
    // That a replay ends there is no end of the answer.
    actual.set_finish_reason(expected.finish_reason());
    actual.clear_matched_stop();
    replayed.same_receipt = true;
    const int64_t scored = tokens - std::clamp<int64_t>(expected.unscored_tokens(), 0, tokens);
    if (scored < tokens && expected.token_ids().size() == actual.token_ids().size()) {
      Shorten(scored, tokens, actual.mutable_logprobs());
    }
  }
  replayed.difference = client::FirstDifference(expected, actual);
  return replayed;
}

}  // namespace lockstep::cli
