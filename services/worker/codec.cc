#include "services/worker/codec.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/packed_array.h"
#include "common/base/status_macros.h"
#include "common/rpc/status_conversion.h"

namespace lockstep::worker {
namespace {

absl::Status Missing(const char* field) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": not set"));
}

template <typename Ids>
std::vector<int32_t> ToIds(const Ids& ids) {
  return std::vector<int32_t>(ids.begin(), ids.end());
}

absl::Status DecodeSampling(const v1::SamplingParams& message, SequenceParameters* out) {
  if (!message.has_temperature()) return Missing("sampling.temperature");
  if (!message.has_top_k()) return Missing("sampling.top_k");
  if (!message.has_top_p()) return Missing("sampling.top_p");
  if (!message.has_min_p()) return Missing("sampling.min_p");
  if (!message.has_repetition_penalty()) return Missing("sampling.repetition_penalty");
  if (!message.has_frequency_penalty()) return Missing("sampling.frequency_penalty");
  if (!message.has_presence_penalty()) return Missing("sampling.presence_penalty");
  out->temperature = message.temperature();
  out->top_k = static_cast<int32_t>(message.top_k());
  out->top_p = message.top_p();
  out->min_p = message.min_p();
  out->repetition_penalty = message.repetition_penalty();
  out->frequency_penalty = message.frequency_penalty();
  out->presence_penalty = message.presence_penalty();
  for (const v1::LogitBias& bias : message.logit_bias()) {
    out->logit_bias.push_back({static_cast<int32_t>(bias.id()), bias.bias()});
  }
  return absl::OkStatus();
}

absl::Status DecodeStop(const v1::StopOptions& message, SequenceParameters* out) {
  if (!message.has_max_new_tokens()) return Missing("stop.max_new_tokens");
  out->max_new_tokens = message.max_new_tokens();
  out->min_new_tokens = message.min_new_tokens();
  out->stop_ids = ToIds(message.stop_ids());
  out->stop_strings.assign(message.stop_strings().begin(), message.stop_strings().end());
  return absl::OkStatus();
}

void DecodeLogprobs(const v1::LogprobOptions& message, SequenceParameters* out) {
  out->logprobs = !message.has_generated() || message.generated();
  out->top_count = static_cast<int32_t>(message.top_count());
  out->chosen_ids = ToIds(message.chosen_ids());
  out->entropy = message.entropy();
  out->prompt_details = message.prompt_details();
}

void EncodeLogprobs(const LogprobBlock& block, v1::LogprobArrays* out) {
  out->set_raw(base::PackArray(block.raw));
  out->set_scaled(base::PackArray(block.scaled));
  out->set_entropy(base::PackArray(block.entropy));
  out->set_top_ids(base::PackArray(block.top_ids));
  out->set_top_logprobs(base::PackArray(block.top_logprobs));
  out->set_chosen_logprobs(base::PackArray(block.chosen_logprobs));
}

v1::FinishReason EncodeReason(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return v1::FINISH_REASON_STOP;
    case EndReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case EndReason::kAbort:
      return v1::FINISH_REASON_ABORT;
    case EndReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void EncodeEnd(const SequenceEnd& end, const std::string& worker_id, v1::SequenceEnd* out) {
  out->set_reason(EncodeReason(end.reason));
  if (const int32_t* id = std::get_if<int32_t>(&end.matched_stop)) {
    out->mutable_matched_stop()->set_id(*id);
  } else if (const std::string* string = std::get_if<std::string>(&end.matched_stop)) {
    out->mutable_matched_stop()->set_string(*string);
  }
  if (end.reason == EndReason::kError) *out->mutable_error() = rpc::ToErrorDetail(end.error);
  v1::SequenceUsage* usage = out->mutable_usage();
  usage->set_cached_tokens(end.usage.cached_tokens);
  usage->set_queue_seconds(end.usage.queue_seconds);
  usage->set_prefill_seconds(end.usage.prefill_seconds);
  usage->set_decode_seconds(end.usage.decode_seconds);
  usage->set_preemptions(end.usage.preemptions);
  out->set_worker_id(worker_id);
}

}  // namespace

Identity DecodeIdentity(const v1::WorkerIdentity& message) {
  return {message.cluster_id(), base::WorkerId(message.worker_id()),
          base::Incarnation(message.incarnation())};
}

v1::WorkerIdentity EncodeIdentity(const Identity& identity) {
  v1::WorkerIdentity message;
  message.set_cluster_id(identity.cluster_id);
  message.set_worker_id(identity.worker.value());
  message.set_incarnation(identity.incarnation.value());
  return message;
}

absl::StatusOr<SequenceStart> DecodeStart(const v1::WorkerStart& message, absl::Time now) {
  if (!message.has_ticket()) return Missing("ticket");
  if (!message.has_sequence()) return Missing("sequence");
  const v1::Ticket& ticket = message.ticket();
  const v1::SequenceSpec& spec = message.sequence();
  if (ticket.sequence_id() != spec.sequence_id()) {
    return absl::InvalidArgumentError(absl::StrCat("ticket.sequence_id: \"", ticket.sequence_id(),
                                                   "\" is not the sequence's \"",
                                                   spec.sequence_id(), "\""));
  }
  SequenceStart start;
  start.ticket = base::TicketId(ticket.ticket_id());
  start.sequence = base::SequenceId(spec.sequence_id());
  start.request = base::RequestId(spec.request_id());
  start.trace_id = spec.trace_id();
  start.attempt = ticket.attempt();
  start.ticket_epoch = base::Epoch(ticket.epoch());
  start.entry_epoch = base::Epoch(spec.entry_epoch());
  start.plan = {ticket.plan().split_kv_size(), ticket.plan().length()};
  start.prompt_ids = ToIds(spec.prompt_ids());
  start.generated_ids = ToIds(spec.generated_ids());
  LOCKSTEP_RETURN_IF_ERROR(DecodeSampling(spec.parameters().sampling(), &start.parameters));
  LOCKSTEP_RETURN_IF_ERROR(DecodeStop(spec.parameters().stop(), &start.parameters));
  DecodeLogprobs(spec.parameters().logprobs(), &start.parameters);
  start.sub_seed = spec.sub_seed();
  start.deliver_output_from = spec.deliver_output_from();
  start.deliver_prompt_from = spec.deliver_prompt_from();
  start.cache_namespace = spec.cache_namespace();
  start.disable_prefix_cache = spec.disable_prefix_cache();
  start.score_only = spec.score_only();
  start.parameters.skip_special_tokens = !spec.keep_special_tokens();
  start.credit_tokens = message.credit_tokens();
  start.deadline = message.deadline_seconds() > 0 ? now + absl::Seconds(message.deadline_seconds())
                                                  : absl::InfiniteFuture();
  return start;
}

v1::SequenceDelta EncodeOutput(const SequenceOutput& output, const std::string& worker_id,
                               const std::string& weights_digest) {
  v1::SequenceDelta delta;
  delta.set_handle(output.ticket.value());
  delta.set_token_begin(output.token_begin);
  if (!output.ids.empty()) {
    delta.set_token_ids(base::PackArray(output.ids));
    EncodeLogprobs(output.logprobs, delta.mutable_logprobs());
  }
  if (output.prompt_count > 0) {
    delta.set_prompt_begin(output.prompt_begin);
    delta.set_prompt_count(output.prompt_count);
    EncodeLogprobs(output.prompt_logprobs, delta.mutable_prompt_logprobs());
  }
  delta.set_weight_version(output.weight_version.value());
  delta.set_weights_digest(weights_digest);
  if (output.end.has_value()) EncodeEnd(*output.end, worker_id, delta.mutable_end());
  return delta;
}

}  // namespace lockstep::worker
