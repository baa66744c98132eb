#include "services/gateway/sample_ledger.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/packed_array.h"
#include "common/base/status_macros.h"
#include "common/rpc/status_conversion.h"
#include "services/gateway/receipt.h"

namespace lockstep::gateway {

SampleLedger::SampleLedger(std::shared_ptr<const RequestContext> context, int64_t sample)
    : context_(std::move(context)),
      widths_(WidthsFor(context_->request.effective.logprobs(),
                        context_->request.effective.logprobs().generated(), true)),
      prompt_widths_(WidthsFor(context_->request.effective.logprobs(), true,
                               context_->request.effective.logprobs().prompt_details())) {
  const ValidRequest& request = context_->request;
  sample_.set_index(request.first_sample_index + sample);
  sample_.set_sub_seed(request.sub_seeds[sample]);
  if (!request.skip_text && context_->tokenizer != nullptr) {
    assembler_.emplace(context_->tokenizer, context_->stops, request.skip_special_tokens);
  }
}

absl::Status SampleLedger::Apply(const v1::SequenceDelta& delta) {
  if (ended_) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(ApplyPrompt(delta));
  LOCKSTEP_RETURN_IF_ERROR(ApplyTokens(delta));
  return delta.has_end() ? ApplyEnd(delta.end()) : absl::OkStatus();
}

absl::Status SampleLedger::ApplyPrompt(const v1::SequenceDelta& delta) {
  if (delta.prompt_count() == 0) return absl::OkStatus();
  int64_t added = 0;
  LOCKSTEP_RETURN_IF_ERROR(AppendLogprobs(delta.prompt_logprobs(), delta.prompt_begin(),
                                          delta.prompt_count(), prompt_widths_,
                                          context_->request.prompt_logprobs_from, prompt_count_,
                                          sample_.mutable_prompt_logprobs(), &added));
  prompt_count_ += added;
  if (context_->request.score_only) AddVersion(delta, added);
  return absl::OkStatus();
}

absl::Status SampleLedger::ApplyTokens(const v1::SequenceDelta& delta) {
  const int64_t count = base::PackedCount(delta.token_ids());
  if (count == 0) return absl::OkStatus();
  const int64_t first_new = token_count_;
  LOCKSTEP_RETURN_IF_ERROR(AppendArray(delta.token_ids(), "token_ids", delta.token_begin(), count,
                                       1, 0, token_count_, sample_.mutable_token_ids()));
  int64_t added = 0;
  const absl::Status status = AppendLogprobs(delta.logprobs(), delta.token_begin(), count, widths_,
                                             0, token_count_, sample_.mutable_logprobs(), &added);
  if (!status.ok()) {  // What was whole before is given back.
    sample_.mutable_token_ids()->resize(token_count_ * base::kPackedNumberBytes);
    *sample_.mutable_logprobs() = SliceLogprobs(sample_.logprobs(), widths_, 0, token_count_);
    return status;
  }
  token_count_ += added;
  AddVersion(delta, added);
  FeedText(first_new);
  return absl::OkStatus();
}

void SampleLedger::AddVersion(const v1::SequenceDelta& delta, int64_t added) {
  if (added == 0) return;
  auto* runs = sample_.mutable_weight_versions();
  if (runs->empty() || runs->rbegin()->version() != delta.weight_version() ||
      weights_digests_.back() != delta.weights_digest()) {
    runs->Add()->set_version(delta.weight_version());
    weights_digests_.push_back(delta.weights_digest());
  }
  v1::VersionRun& last = *runs->rbegin();
  last.set_count(last.count() + added);
}

void SampleLedger::FeedText(int64_t first_new_token) {
  if (!assembler_.has_value()) return;
  for (int64_t i = first_new_token; i < base::PackedCount(sample_.token_ids()); ++i) {
    assembler_->Feed(base::PackedAt<int32_t>(sample_.token_ids(), i), sample_.mutable_text());
  }
}

absl::Status SampleLedger::CheckStop(const v1::SequenceEnd& end) const {
  if (!assembler_.has_value()) return absl::OkStatus();
  const std::optional<text::StopMatch>& own = assembler_->stop();
  const bool stopped = end.reason() == v1::FINISH_REASON_STOP;
  if (!stopped && !own.has_value()) return absl::OkStatus();
  if (stopped && own.has_value()) {
    const bool is_string = own->kind == text::StopMatch::Kind::kStopString;
    if (is_string ? end.matched_stop().string() ==
                        context_->request.effective.stop().stop_strings(own->string_index)
                  : end.matched_stop().id() == own->id) {
      return absl::OkStatus();
    }
  }
  // An abort may come before the worker's own end, after the token that stops.
  if (!stopped && end.reason() != v1::FINISH_REASON_LENGTH) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the worker ends the sample at token ", token_count_,
                                          " with another stop than its text has"));
}

absl::Status SampleLedger::ApplyEnd(const v1::SequenceEnd& end) {
  if (end.reason() == v1::FINISH_REASON_STOP || end.reason() == v1::FINISH_REASON_LENGTH) {
    const size_t given = context_->request.generated_ids.size();
    if (token_count_ < static_cast<int64_t>(given)) {
      return absl::InternalError(absl::StrCat("the worker ends the sample at token ", token_count_,
                                              " of ", given, " that it was given"));
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckStop(end));
  }
  sample_.set_finish_reason(end.reason());
  if (end.has_matched_stop()) *sample_.mutable_matched_stop() = end.matched_stop();
  if (end.has_error()) *sample_.mutable_error() = end.error();
  v1::Usage* usage = sample_.mutable_usage();
  usage->set_cached_tokens(end.usage().cached_tokens());
  usage->set_queue_seconds(end.usage().queue_seconds());
  usage->set_prefill_seconds(end.usage().prefill_seconds());
  usage->set_decode_seconds(end.usage().decode_seconds());
  usage->set_preemptions(end.usage().preemptions());
  usage->set_worker_id(end.worker_id());
  resumptions_ += end.resumptions();
  Finish();
  return absl::OkStatus();
}

void SampleLedger::End(v1::FinishReason reason, const absl::Status& error) {
  if (ended_) return;
  sample_.set_finish_reason(reason);
  if (reason == v1::FINISH_REASON_ERROR) *sample_.mutable_error() = rpc::ToErrorDetail(error);
  Finish();
}

absl::Status SampleLedger::error() const {
  const bool failed = sample_.finish_reason() == v1::FINISH_REASON_ERROR;
  return failed ? rpc::FromErrorDetail(sample_.error()) : absl::OkStatus();
}

void SampleLedger::KeepGivenIds() {
  const std::vector<int32_t>& given = context_->request.generated_ids;
  const int64_t unscored = static_cast<int64_t>(given.size()) - token_count_;
  if (unscored <= 0) return;
  sample_.mutable_token_ids()->append(
      base::PackArray(std::span<const int32_t>(given).subspan(token_count_)));
  sample_.set_unscored_tokens(unscored);
  FeedText(token_count_);
}

void SampleLedger::Finish() {
  ended_ = true;
  KeepGivenIds();
  if (assembler_.has_value()) {
    assembler_->Finish(sample_.mutable_text());
    sample_.set_text_tail_bytes(std::string(assembler_->text_tail_bytes()));
    assembler_.reset();  // The sample may be kept for a retry; no token follows.
  }
  v1::Usage* usage = sample_.mutable_usage();
  usage->set_prompt_tokens(static_cast<int64_t>(context_->request.prompt_ids.size()));
  usage->set_generated_tokens(base::PackedCount(sample_.token_ids()));
  usage->set_resumptions(resumptions_);
  if (sample_.finish_reason() != v1::FINISH_REASON_ERROR) {
    *sample_.mutable_receipt() = MakeReceipt(*context_, sample_, weights_digests_);
  }
}

v1::SequenceSpec SampleLedger::Spec() const {
  const ValidRequest& request = context_->request;
  v1::SequenceSpec spec;
  spec.set_sequence_id(absl::StrCat(request.request_id, "/", sample_.index()));
  spec.set_request_id(request.request_id);
  spec.set_trace_id(context_->trace_id);
  spec.mutable_prompt_ids()->Add(request.prompt_ids.begin(), request.prompt_ids.end());
  const int64_t given = static_cast<int64_t>(request.generated_ids.size());
  for (int64_t i = 0; i < std::max(given, token_count_); ++i) {
    spec.add_generated_ids(i < token_count_ ? base::PackedAt<int32_t>(sample_.token_ids(), i)
                                            : request.generated_ids[i]);
  }
  *spec.mutable_parameters() = request.effective;
  spec.set_sub_seed(sample_.sub_seed());
  spec.set_deliver_output_from(token_count_);
  // Only the first sample brings the prompt's logprobs; the others would be equal.
  const bool wants_prompt =
      request.prompt_logprobs_from > 0 && sample_.index() == request.first_sample_index;
  const int64_t next_prompt = request.prompt_logprobs_from + prompt_count_;
  if (wants_prompt && next_prompt < static_cast<int64_t>(request.prompt_ids.size())) {
    spec.set_deliver_prompt_from(next_prompt);
  }
  spec.set_cache_namespace(request.cache_namespace);
  spec.set_disable_prefix_cache(request.disable_prefix_cache);
  spec.set_score_only(request.score_only);
  spec.set_routing_key(request.routing_key);
  spec.set_group_id(request.request_id);
  spec.set_group_size(request.n);
  spec.set_keep_special_tokens(!request.skip_special_tokens);
  return spec;
}

v1::GenerateDelta SampleLedger::Since(int64_t token_begin, int64_t prompt_begin,
                                      size_t text_begin) const {
  v1::GenerateDelta delta;
  delta.set_index(sample_.index());
  delta.set_token_begin(token_begin);
  // Unscored tokens come with the end, behind all others.
  delta.set_token_ids(sample_.token_ids().substr(token_begin * base::kPackedNumberBytes));
  if (token_begin < token_count_) {
    *delta.mutable_logprobs() =
        SliceLogprobs(sample_.logprobs(), widths_, token_begin, token_count_);
    int64_t at = 0;
    for (const v1::VersionRun& run : sample_.weight_versions()) {
      const int64_t begin = std::max(at, token_begin);
      at += run.count();
      if (begin >= at) continue;
      v1::VersionRun* piece = delta.add_weight_versions();
      piece->set_count(at - begin);
      piece->set_version(run.version());
    }
  }
  delta.set_text(sample_.text().substr(text_begin));
  if (prompt_begin < prompt_count_) {
    delta.set_prompt_begin(context_->request.prompt_logprobs_from + prompt_begin);
    *delta.mutable_prompt_logprobs() =
        SliceLogprobs(sample_.prompt_logprobs(), prompt_widths_, prompt_begin, prompt_count_);
  }
  if (ended_) {
    v1::Sample* finished = delta.mutable_finished();
    *finished = sample_;
    finished->clear_token_ids();
    finished->clear_text();
    finished->clear_logprobs();
    finished->clear_prompt_logprobs();
  }
  return delta;
}

}  // namespace lockstep::gateway
