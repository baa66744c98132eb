#include "services/router/wire.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/packed_array.h"
#include "common/rpc/status_conversion.h"

namespace lockstep::router {
namespace {

// Tags, lengths and small fields of an item; generous.
constexpr size_t kItemBytes = 256;

LogprobBytes DecodeLogprobs(v1::LogprobArrays* arrays) {
  return {.raw = std::move(*arrays->mutable_raw()),
          .scaled = std::move(*arrays->mutable_scaled()),
          .entropy = std::move(*arrays->mutable_entropy()),
          .top_ids = std::move(*arrays->mutable_top_ids()),
          .top_logprobs = std::move(*arrays->mutable_top_logprobs()),
          .chosen_logprobs = std::move(*arrays->mutable_chosen_logprobs())};
}

void EncodeLogprobs(LogprobBytes bytes, v1::LogprobArrays* arrays) {
  arrays->set_raw(std::move(bytes.raw));
  arrays->set_scaled(std::move(bytes.scaled));
  arrays->set_entropy(std::move(bytes.entropy));
  arrays->set_top_ids(std::move(bytes.top_ids));
  arrays->set_top_logprobs(std::move(bytes.top_logprobs));
  arrays->set_chosen_logprobs(std::move(bytes.chosen_logprobs));
}

void AppendLogprobs(const LogprobBytes& bytes, v1::LogprobArrays* arrays) {
  arrays->mutable_raw()->append(bytes.raw);
  arrays->mutable_scaled()->append(bytes.scaled);
  arrays->mutable_entropy()->append(bytes.entropy);
  arrays->mutable_top_ids()->append(bytes.top_ids);
  arrays->mutable_top_logprobs()->append(bytes.top_logprobs);
  arrays->mutable_chosen_logprobs()->append(bytes.chosen_logprobs);
}

size_t LogprobBytesSize(const LogprobBytes& bytes) {
  return bytes.raw.size() + bytes.scaled.size() + bytes.entropy.size() + bytes.top_ids.size() +
         bytes.top_logprobs.size() + bytes.chosen_logprobs.size();
}

EndReason DecodeReason(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return EndReason::kStop;
    case v1::FINISH_REASON_LENGTH:
      return EndReason::kLength;
    case v1::FINISH_REASON_ABORT:
      return EndReason::kAbort;
    case v1::FINISH_REASON_PARTIAL:
      return EndReason::kPartial;
    default:
      return EndReason::kError;
  }
}

v1::FinishReason EncodeReason(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return v1::FINISH_REASON_STOP;
    case EndReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case EndReason::kAbort:
      return v1::FINISH_REASON_ABORT;
    case EndReason::kPartial:
      return v1::FINISH_REASON_PARTIAL;
    case EndReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

SequenceEnd DecodeEnd(const v1::SequenceEnd& message) {
  SequenceEnd end;
  end.reason = DecodeReason(message.reason());
  if (message.matched_stop().has_id()) end.matched_stop = message.matched_stop().id();
  if (message.matched_stop().has_string()) end.matched_stop = message.matched_stop().string();
  if (end.reason == EndReason::kError) {
    end.error = rpc::FromErrorDetail(message.error());
    if (end.error.ok()) end.error = absl::UnknownError("a worker ended a sequence without reason");
  }
  const v1::SequenceUsage& usage = message.usage();
  end.usage = {.cached_tokens = usage.cached_tokens(),
               .queue_seconds = usage.queue_seconds(),
               .prefill_seconds = usage.prefill_seconds(),
               .decode_seconds = usage.decode_seconds(),
               .preemptions = usage.preemptions()};
  end.worker_id = message.worker_id();
  end.resumptions = message.resumptions();
  return end;
}

void EncodeEnd(SequenceEnd end, v1::SequenceEnd* message) {
  message->set_reason(EncodeReason(end.reason));
  if (const int64_t* id = std::get_if<int64_t>(&end.matched_stop)) {
    message->mutable_matched_stop()->set_id(*id);
  } else if (std::string* text = std::get_if<std::string>(&end.matched_stop)) {
    message->mutable_matched_stop()->set_string(std::move(*text));
  }
  if (!end.error.ok()) *message->mutable_error() = rpc::ToErrorDetail(end.error);
  v1::SequenceUsage* usage = message->mutable_usage();
  usage->set_cached_tokens(end.usage.cached_tokens);
  usage->set_queue_seconds(end.usage.queue_seconds);
  usage->set_prefill_seconds(end.usage.prefill_seconds);
  usage->set_decode_seconds(end.usage.decode_seconds);
  usage->set_preemptions(end.usage.preemptions);
  message->set_worker_id(std::move(end.worker_id));
  message->set_resumptions(end.resumptions);
}

SequenceDelta DecodeDelta(v1::SequenceDelta* message) {
  SequenceDelta delta;
  delta.handle = message->handle();
  delta.token_begin = message->token_begin();
  delta.token_ids = std::move(*message->mutable_token_ids());
  if (message->has_logprobs()) delta.logprobs = DecodeLogprobs(message->mutable_logprobs());
  delta.prompt_begin = message->prompt_begin();
  delta.prompt_count = message->prompt_count();
  if (message->has_prompt_logprobs()) {
    delta.prompt_logprobs = DecodeLogprobs(message->mutable_prompt_logprobs());
  }
  delta.weight_version = message->weight_version();
  delta.weights_digest = std::move(*message->mutable_weights_digest());
  if (message->has_end()) delta.end = DecodeEnd(message->end());
  return delta;
}

// `last` where it is the same, else a copy, which becomes it.
std::shared_ptr<const std::vector<uint32_t>> SharedPrompt(
    const google::protobuf::RepeatedField<uint32_t>& ids,
    std::shared_ptr<const std::vector<uint32_t>>* last) {
  if (*last == nullptr || !std::equal(ids.begin(), ids.end(), (*last)->begin(), (*last)->end())) {
    *last = std::make_shared<const std::vector<uint32_t>>(ids.begin(), ids.end());
  }
  return *last;
}

}  // namespace

OpenSequence DecodeOpen(v1::RouteOpen* open,
                        std::shared_ptr<const std::vector<uint32_t>>* last_prompt) {
  auto spec = std::make_shared<SequenceSpec>();
  v1::SequenceSpec* message = open->mutable_sequence();
  spec->sequence = base::SequenceId(message->sequence_id());
  spec->request = base::RequestId(message->request_id());
  spec->trace_id = message->trace_id();
  spec->prompt = SharedPrompt(message->prompt_ids(), last_prompt);
  spec->generated_ids.assign(message->generated_ids().begin(), message->generated_ids().end());
  spec->max_new_tokens = message->parameters().stop().max_new_tokens();
  spec->deliver_output_from = message->deliver_output_from();
  spec->deliver_prompt_from = message->deliver_prompt_from();
  spec->cache_namespace = message->cache_namespace();
  spec->disable_prefix_cache = message->disable_prefix_cache();
  spec->routing_key = message->routing_key();
  spec->group_id = message->group_id();
  spec->group_size = message->group_size();
  spec->entry_epoch = base::Epoch(message->entry_epoch());
  message->clear_prompt_ids();
  message->clear_generated_ids();
  message->SerializeToString(&spec->body);
  return {.handle = open->handle(),
          .spec = std::move(spec),
          .time_left = absl::Seconds(open->deadline_seconds()),
          .credit_tokens = open->credit_tokens(),
          .retry_budget = open->retry_budget()};
}

WorkerFrame DecodeFrame(v1::WorkerFrame* message) {
  WorkerFrame frame;
  frame.deltas.reserve(static_cast<size_t>(message->deltas_size()));
  for (v1::SequenceDelta& delta : *message->mutable_deltas()) {
    frame.deltas.push_back(DecodeDelta(&delta));
  }
  for (const v1::WorkerRefusal& refusal : message->refusals()) {
    frame.refusals.push_back(
        {base::TicketId(refusal.ticket_id()), rpc::FromErrorDetail(refusal.error())});
  }
  for (const v1::WorkerHandOff& hand_off : message->hand_offs()) {
    frame.hand_offs.emplace_back(hand_off.ticket_id());
  }
  return frame;
}

Ticket DecodeTicket(const v1::Ticket& ticket) {
  return {
      .id = base::TicketId(ticket.ticket_id()),
      .worker = DecodeWorker(ticket.worker()),
      .attempt = ticket.attempt(),
      .epoch = base::Epoch(ticket.epoch()),
      .plan = {.split_kv_size = ticket.plan().split_kv_size(), .length = ticket.plan().length()},
      .expires = absl::Seconds(ticket.expires_seconds())};
}

WorkerKey DecodeWorker(const v1::WorkerIdentity& worker) {
  return {base::WorkerId(worker.worker_id()), base::Incarnation(worker.incarnation())};
}

WorkerState DecodeWorkerState(const v1::WorkerState& state) {
  return {.worker = DecodeWorker(state.worker()),
          .address = state.address(),
          .running_sequences = state.running_sequences(),
          .draining = state.draining(),
          .lease = absl::Seconds(state.lease_seconds())};
}

void EncodeWorker(const std::string& cluster_id, const WorkerKey& key, v1::WorkerIdentity* worker) {
  worker->set_cluster_id(cluster_id);
  worker->set_worker_id(key.id.value());
  worker->set_incarnation(key.incarnation.value());
}

void EncodeDelta(SequenceDelta delta, v1::SequenceDelta* message) {
  message->set_handle(delta.handle);
  if (!delta.token_ids.empty()) {
    message->set_token_begin(delta.token_begin);
    message->set_token_ids(std::move(delta.token_ids));
    EncodeLogprobs(std::move(delta.logprobs), message->mutable_logprobs());
  }
  if (delta.prompt_count > 0) {
    message->set_prompt_begin(delta.prompt_begin);
    message->set_prompt_count(delta.prompt_count);
    EncodeLogprobs(std::move(delta.prompt_logprobs), message->mutable_prompt_logprobs());
  }
  message->set_weight_version(delta.weight_version);
  message->set_weights_digest(std::move(delta.weights_digest));
  if (delta.end.has_value()) EncodeEnd(*std::move(delta.end), message->mutable_end());
}

bool JoinDelta(const SequenceDelta& delta, v1::SequenceDelta* message) {
  const int64_t end = message->token_begin() + base::PackedCount(message->token_ids());
  const bool follows = !message->token_ids().empty() && !delta.token_ids.empty() &&
                       delta.token_begin == end && message->prompt_count() == 0 &&
                       delta.prompt_count == 0 && !message->has_end();
  if (!follows || delta.weight_version != message->weight_version() ||
      delta.weights_digest != message->weights_digest()) {
    return false;
  }
  message->mutable_token_ids()->append(delta.token_ids);
  AppendLogprobs(delta.logprobs, message->mutable_logprobs());
  if (delta.end.has_value()) EncodeEnd(*delta.end, message->mutable_end());
  return true;
}

void EncodeAdmit(const std::string& cluster_id, const AdmitRequest& request,
                 v1::AdmitRequest* message) {
  const SequenceSpec& spec = *request.spec;
  message->set_handle(request.handle);
  message->set_sequence_id(spec.sequence.value());
  message->set_request_id(spec.request.value());
  message->set_trace_id(spec.trace_id);
  message->set_attempt(request.attempt);
  message->set_length(request.length);
  message->set_prompt_tokens(static_cast<int64_t>(spec.prompt_ids().size()));
  message->set_new_tokens_max(request.new_tokens_max);
  message->set_prefix_hash(request.prefix_hash);
  message->set_group_id(spec.group_id);
  message->set_group_size(spec.group_size);
  for (const WorkerKey& candidate : request.candidates) {
    EncodeWorker(cluster_id, candidate, message->add_candidates());
  }
  message->set_entry_epoch(request.entry_epoch.value());
  message->set_deadline_seconds(absl::ToDoubleSeconds(request.time_left));
  message->set_used_ticket_id(request.used_ticket.value());
}

void EncodeStart(const std::string& cluster_id, const WorkerStart& start,
                 v1::WorkerStart* message) {
  const SequenceSpec& spec = *start.spec;
  v1::Ticket* ticket = message->mutable_ticket();
  ticket->set_ticket_id(start.ticket.id.value());
  EncodeWorker(cluster_id, start.ticket.worker, ticket->mutable_worker());
  ticket->set_sequence_id(spec.sequence.value());
  ticket->set_attempt(start.ticket.attempt);
  ticket->set_epoch(start.ticket.epoch.value());
  ticket->mutable_plan()->set_split_kv_size(start.ticket.plan.split_kv_size);
  ticket->mutable_plan()->set_length(start.ticket.plan.length);
  ticket->set_expires_seconds(absl::ToDoubleSeconds(start.ticket.expires));

  v1::SequenceSpec* sequence = message->mutable_sequence();
  // Written by DecodeOpen.
  LOCKSTEP_CHECK(sequence->ParseFromString(spec.body));
  const std::vector<uint32_t>& generated =
      start.generated_ids == nullptr ? spec.generated_ids : *start.generated_ids;
  sequence->mutable_prompt_ids()->Add(spec.prompt_ids().begin(), spec.prompt_ids().end());
  sequence->mutable_generated_ids()->Add(generated.begin(), generated.end());
  sequence->set_entry_epoch(start.entry_epoch.value());
  sequence->set_deliver_output_from(start.deliver_output_from);
  sequence->set_deliver_prompt_from(start.deliver_prompt_from);
  message->set_credit_tokens(start.credit_tokens);
  message->set_deadline_seconds(absl::ToDoubleSeconds(start.time_left));
}

size_t WireBytes(const SequenceDelta& delta) { return kItemBytes + ArrayBytes(delta); }

size_t ArrayBytes(const SequenceDelta& delta) {
  return delta.token_ids.size() + LogprobBytesSize(delta.logprobs) +
         LogprobBytesSize(delta.prompt_logprobs);
}

size_t WireBytes(const AdmitRequest& request) {
  return kItemBytes + request.spec->sequence.value().size() + 64 * request.candidates.size();
}

size_t WireBytes(const WorkerStart& start) {
  // A varint of an id takes at most five bytes.
  const size_t generated = start.generated_ids == nullptr ? start.spec->generated_ids.size()
                                                          : start.generated_ids->size();
  return kItemBytes + start.spec->body.size() + 5 * (start.spec->prompt_ids().size() + generated);
}

}  // namespace lockstep::router
