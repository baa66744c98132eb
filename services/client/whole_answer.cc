#include "services/client/whole_answer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/packed_array.h"
#include "common/rpc/status_conversion.h"
#include "google/protobuf/util/message_differencer.h"
#include "services/client/arrays.h"

namespace lockstep::client {
namespace {

// Whether what `sample` of `response` has so far, and what `next` adds to it, are of one contract
// and the same weights.
bool BelongTogether(const v1::GenerateResponse& response, const v1::Sample& sample,
                    const v1::GenerateResponse& next) {
  if (!google::protobuf::util::MessageDifferencer::Equals(response.fingerprint(),
                                                          next.fingerprint())) {
    return false;
  }
  const auto& before = sample.receipt().weights_digests();
  const auto& after = next.samples(0).receipt().weights_digests();
  return before.empty() || after.empty() || *before.rbegin() == *after.begin();
}

int64_t ScoredCount(const v1::Sample& sample) {
  return base::PackedCount(sample.token_ids()) - sample.unscored_tokens();
}

bool HasMorePrompt(const v1::Sample& sample, const v1::Sample& than) {
  return sample.prompt_logprobs().raw().size() > than.prompt_logprobs().raw().size();
}

int64_t TokenCount(const v1::GenerateResponse& response) {
  int64_t count = 0;
  for (const v1::Sample& sample : response.samples()) {
    count += base::PackedCount(sample.token_ids());
  }
  return count;
}

bool IsCutShort(const v1::GenerateResponse& response) {
  return std::any_of(response.samples().begin(), response.samples().end(), [](const auto& sample) {
    return sample.finish_reason() == v1::FINISH_REASON_PARTIAL ||
           sample.finish_reason() == v1::FINISH_REASON_ABORT;
  });
}

}  // namespace

absl::StatusOr<bool> WholeAnswer::Take(v1::GenerateResponse answer) {
  if (!begun_) {
    response_ = std::move(answer);
    sample_ = 0;
    return IsWhole();
  }
  if (answer.samples_size() != 1) return absl::InternalError("a continuation has no sample");
  if (!BelongTogether(response_, response_.samples(sample_), answer)) {
    if (TokenCount(response_) > TokenCount(given_up_)) given_up_.Swap(&response_);
    response_.Clear();
    begun_ = false;
    return false;
  }
  Join(answer.mutable_samples(0));
  return IsWhole();
}

void WholeAnswer::Join(v1::Sample* continued) {
  v1::Sample* sample = response_.mutable_samples(sample_);
  v1::LogprobArrays prompt;
  prompt.Swap((HasMorePrompt(*continued, *sample) ? continued : sample)->mutable_prompt_logprobs());
  // Where it ended before as much was computed again, the first answer knows more.
  if (ScoredCount(*continued) >= ScoredCount(*sample)) {
    sample->Swap(continued);
  } else {
    sample->set_finish_reason(continued->finish_reason());
    sample->clear_error();
    if (continued->has_error()) *sample->mutable_error() = continued->error();
  }
  sample->mutable_prompt_logprobs()->Swap(&prompt);
}

absl::StatusOr<v1::GenerateResponse> WholeAnswer::Finish(const absl::Status& failed) {
  const bool cut_short = !failed.ok() || IsCutShort(response_);
  if (cut_short && TokenCount(given_up_) > TokenCount(response_)) response_.Swap(&given_up_);
  if (response_.samples().empty() && !failed.ok()) return failed;
  for (v1::Sample& sample : *response_.mutable_samples()) {
    if (failed.ok() || sample.finish_reason() != v1::FINISH_REASON_PARTIAL) continue;
    *sample.mutable_error() = rpc::ToErrorDetail(failed);
  }
  return std::move(response_);
}

bool WholeAnswer::IsWhole() {
  for (; sample_ < response_.samples_size(); ++sample_) {
    const v1::Sample& sample = response_.samples(sample_);
    if (sample.finish_reason() != v1::FINISH_REASON_PARTIAL) continue;
    continuation_ = ContinuationOf(*request_, response_, sample);
    begun_ = true;
    return false;
  }
  return true;
}

v1::GenerateRequest ContinuationOf(const v1::GenerateRequest& request,
                                   const v1::GenerateResponse& response,
                                   const v1::Sample& partial) {
  v1::GenerateRequest next = request;
  next.clear_request_id();
  next.clear_n();
  next.set_first_sample_index(partial.index());
  next.set_exact_seed(partial.sub_seed());
  // The prompt as it was used, so that text is not tokenised a second time.
  *next.mutable_prompt_ids()->mutable_ids() = ToIdField(ReadIds(response.prompt_ids()));
  // Only the first sample of an answer has logprobs of the prompt.
  const bool is_first = partial.index() == response.samples(0).index();
  const int64_t prompt_positions =
      base::PackedCount(response.prompt_ids()) - next.logprobs().prompt_from();
  if (!is_first || base::PackedCount(partial.prompt_logprobs().raw()) >= prompt_positions) {
    next.mutable_logprobs()->clear_prompt_from();
  }
  *next.mutable_generated_ids() = ToIdField(ReadIds(partial.token_ids()));
  return next;
}

}  // namespace lockstep::client
