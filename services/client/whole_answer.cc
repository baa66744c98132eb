#include "services/client/whole_answer.h"

#include <utility>

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

}  // namespace

absl::StatusOr<bool> WholeAnswer::Take(v1::GenerateResponse answer) {
  if (!begun_) {
    response_ = std::move(answer);
    sample_ = 0;
    return IsWhole();
  }
  if (answer.samples_size() != 1) return absl::InternalError("a continuation has no sample");
  v1::Sample* sample = response_.mutable_samples(sample_);
  if (!BelongTogether(response_, *sample, answer)) {
    begun_ = false;
    return false;
  }
  v1::Sample* continued = answer.mutable_samples(0);
  continued->mutable_prompt_logprobs()->Swap(sample->mutable_prompt_logprobs());
  sample->Swap(continued);
  return IsWhole();
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
  // The prompt as it was used, so that text is not tokenised a second time. Its logprobs are in the
  // first answer already.
  *next.mutable_prompt_ids()->mutable_ids() = ToIdField(ReadIds(response.prompt_ids()));
  next.mutable_logprobs()->clear_prompt_from();
  *next.mutable_generated_ids() = ToIdField(ReadIds(partial.token_ids()));
  return next;
}

}  // namespace lockstep::client
