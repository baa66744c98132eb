#include "services/scheduler/scheduler_wire.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/status_conversion.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace lockstep::scheduler {
namespace {

using google::protobuf::FieldDescriptor;

// The value of a singular field as text; enumerators by name.
std::string FieldText(const google::protobuf::Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnum(message, &field)->name();
    default:
      // A type that the fingerprint does not use yet still takes part in the comparison.
      return message.ShortDebugString();
  }
}

HeldTicket DecodeHeld(const v1::HeldTicket& held) {
  return {.ticket = base::TicketId(held.ticket_id()),
          .sequence = base::SequenceId(held.sequence_id()),
          .attempt = held.attempt(),
          .kv_blocks = held.kv_blocks()};
}

// A wait without end, or of no sensible length, is bounded by the largest duration.
absl::Time DeadlineIn(double seconds, absl::Time now) {
  return seconds > 0 ? now + absl::Seconds(seconds) : now;
}

v1::Ticket EncodeTicket(const std::string& cluster_id, const Ticket& ticket) {
  v1::Ticket out;
  out.set_ticket_id(ticket.id.value());
  *out.mutable_worker() = EncodeWorker(cluster_id, ticket.worker);
  out.set_sequence_id(ticket.sequence.value());
  out.set_attempt(ticket.attempt);
  out.set_epoch(ticket.epoch.value());
  out.mutable_plan()->set_split_kv_size(ticket.plan.split_kv_size);
  out.mutable_plan()->set_length(ticket.plan.length);
  out.set_expires_seconds(absl::ToDoubleSeconds(ticket.expires_after));
  return out;
}

}  // namespace

LeaseEnd DecodeFault(v1::WorkerFault fault) {
  if (fault == v1::WORKER_FAULT_UNSPECIFIED) return LeaseEnd::kLeft;
  return fault == v1::WORKER_FAULT_BITS ? LeaseEnd::kWrongBits : LeaseEnd::kFailed;
}

WorkerName DecodeWorker(const v1::WorkerIdentity& worker) {
  return {.id = base::WorkerId(worker.worker_id()),
          .incarnation = base::Incarnation(worker.incarnation())};
}

v1::WorkerIdentity EncodeWorker(const std::string& cluster_id, const WorkerName& name) {
  v1::WorkerIdentity worker;
  worker.set_cluster_id(cluster_id);
  worker.set_worker_id(name.id.value());
  worker.set_incarnation(name.incarnation.value());
  return worker;
}

Contract DecodeContract(const v1::RegisterRequest& request) {
  Contract contract{.weight_version = base::WeightVersion(request.weight_version()),
                    .weights_digest = request.weights_digest()};
  const v1::ContractFingerprint& fingerprint = request.fingerprint();
  const google::protobuf::Descriptor& descriptor = *fingerprint.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    contract.fields.push_back({.name = field.name(), .value = FieldText(fingerprint, field)});
  }
  return contract;
}

WorkerRegistration DecodeRegistration(const v1::RegisterRequest& request) {
  const v1::WorkerCapacity& capacity = request.capacity();
  WorkerRegistration registration{.name = {.id = base::WorkerId(request.worker_id()),
                                           .incarnation = base::Incarnation(request.incarnation())},
                                  .address = request.address(),
                                  .metrics_address = request.metrics_address(),
                                  .capacity = {.kv_blocks = capacity.kv_blocks(),
                                               .kv_block_tokens = capacity.kv_block_tokens(),
                                               .sequences_max = capacity.sequences_max(),
                                               .context_tokens_max = capacity.context_tokens_max(),
                                               .chunk_tokens = capacity.chunk_tokens()},
                                  .split_kv_size = request.fingerprint().split_kv_size(),
                                  .contract = DecodeContract(request)};
  for (const v1::HeldTicket& held : request.held()) registration.held.push_back(DecodeHeld(held));
  return registration;
}

WorkerReport DecodeReport(const v1::HeartbeatRequest& request) {
  WorkerReport report{.name = DecodeWorker(request.worker()),
                      .steps = request.steps(),
                      .idle = request.idle(),
                      .kv_blocks_free = request.kv_blocks_free()};
  for (const v1::HeldTicket& held : request.held()) report.held.push_back(DecodeHeld(held));
  for (const v1::CutReport& cut : request.cuts()) {
    report.cuts.push_back({.ticket = base::TicketId(cut.ticket_id()),
                           .begin = cut.begin(),
                           .end = cut.end(),
                           .length = cut.length()});
  }
  for (const uint64_t ticket : request.ended_tickets()) report.ended.emplace_back(ticket);
  return report;
}

AdmissionRequest DecodeAdmission(const v1::AdmitRequest& request, RouterStream stream,
                                 absl::Time now) {
  AdmissionRequest decoded{.stream = stream,
                           .handle = request.handle(),
                           .sequence = base::SequenceId(request.sequence_id()),
                           .request = base::RequestId(request.request_id()),
                           .trace_id = request.trace_id(),
                           .group = request.group_id(),
                           .attempt = request.attempt(),
                           .demand = {.length = request.length(),
                                      .prompt_tokens = request.prompt_tokens(),
                                      .new_tokens_max = request.new_tokens_max(),
                                      .prefix_hash = request.prefix_hash()},
                           .entry_epoch = base::Epoch(request.entry_epoch()),
                           .deadline = DeadlineIn(request.deadline_seconds(), now),
                           .used_ticket = base::TicketId(request.used_ticket_id())};
  for (const v1::WorkerIdentity& worker : request.candidates()) {
    decoded.candidates.push_back(DecodeWorker(worker));
  }
  return decoded;
}

v1::AdmitOutcome EncodeOutcome(const std::string& cluster_id, const AdmitOutcome& outcome) {
  v1::AdmitOutcome encoded;
  encoded.set_handle(outcome.handle);
  if (!outcome.ticket.ok()) {
    *encoded.mutable_error() = rpc::ToErrorDetail(outcome.ticket.status());
    return encoded;
  }
  *encoded.mutable_ticket() = EncodeTicket(cluster_id, *outcome.ticket);
  return encoded;
}

v1::AdvanceTicket EncodeAdvance(const std::string& cluster_id, const AdvanceGrant& grant) {
  v1::AdvanceTicket encoded;
  *encoded.mutable_ticket() = EncodeTicket(cluster_id, grant.ticket);
  encoded.set_tokens_max(grant.tokens_max);
  return encoded;
}

absl::StatusOr<PauseMode> DecodePauseMode(v1::PauseMode mode) {
  switch (mode) {
    case v1::PAUSE_MODE_UNSPECIFIED:
    case v1::PAUSE_MODE_WAIT:
      return PauseMode::kWait;
    case v1::PAUSE_MODE_ABORT:
      return PauseMode::kAbort;
    case v1::PAUSE_MODE_KEEP:
      return PauseMode::kKeep;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "mode: ", mode, " is outside [", v1::PauseMode_MIN, ", ", v1::PauseMode_MAX, "]"));
  }
}

v1::PauseMode EncodePauseMode(PauseMode mode) {
  switch (mode) {
    case PauseMode::kWait:
      return v1::PAUSE_MODE_WAIT;
    case PauseMode::kAbort:
      return v1::PAUSE_MODE_ABORT;
    case PauseMode::kKeep:
      return v1::PAUSE_MODE_KEEP;
  }
  return v1::PAUSE_MODE_UNSPECIFIED;
}

v1::WorkerState EncodeView(const std::string& cluster_id, const WorkerView& view) {
  v1::WorkerState state;
  *state.mutable_worker() = EncodeWorker(cluster_id, view.name);
  state.set_address(view.address);
  state.set_metrics_address(view.metrics_address);
  state.set_running_sequences(view.running_sequences);
  state.set_kv_blocks_free(view.kv_blocks_free);
  state.set_kv_blocks(view.kv_blocks);
  state.set_draining(view.draining);
  state.set_lease_seconds(absl::ToDoubleSeconds(view.lease));
  return state;
}

v1::ControlRequest EncodeControl(const std::string& cluster_id, const ControlCall& call) {
  v1::ControlRequest request;
  *request.mutable_worker() = EncodeWorker(cluster_id, call.worker);
  request.set_scheduler_epoch(call.scheduler_epoch);
  request.set_admission_epoch(call.admission_epoch.value());
  for (const base::RequestId& id : call.command.abort_requests) {
    request.add_abort_request_ids(id.value());
  }
  request.set_abort_all(call.command.abort_all);
  request.set_hold(call.command.hold);
  request.set_flush_cache(call.command.flush_cache);
  if (call.command.flush_namespace.has_value()) {
    request.set_flush_namespace(*call.command.flush_namespace);
  }
  return request;
}

ControlReply DecodeControlReply(const v1::ControlResponse& response) {
  ControlReply reply{.aborted_sequences = response.aborted_sequences(),
                     .freed_blocks = response.freed_blocks()};
  for (const std::string& id : response.known_request_ids()) {
    reply.known_requests.emplace_back(id);
  }
  return reply;
}

}  // namespace lockstep::scheduler
