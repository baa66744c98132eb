#include "services/worker/run_handler.h"

#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/rpc/status_conversion.h"
#include "services/worker/codec.h"

namespace lockstep::worker {
namespace {

void AddRefusal(uint64_t ticket, const absl::Status& status, v1::WorkerFrame* frame) {
  v1::WorkerRefusal* refusal = frame->add_refusals();
  refusal->set_ticket_id(ticket);
  *refusal->mutable_error() = rpc::ToErrorDetail(status);
}

}  // namespace

void RunHandler::OnMessage(v1::WorkerCommand& command) {
  if (absl::Status status = parts_.fence->CheckIdentity(DecodeIdentity(command.worker()));
      !status.ok()) {
    DropSequences();
    return Finish(std::move(status));
  }
  StartSequences(command);
  for (const v1::WorkerCancel& cancel : command.cancel()) {
    parts_.engine->Cancel(base::TicketId(cancel.ticket_id()));
  }
  for (const v1::Credit& credit : command.credit()) {
    parts_.engine->AddCredit(base::TicketId(credit.handle()), credit.tokens());
  }
  RequestRead();
}

absl::StatusOr<SequenceStart> RunHandler::CheckStart(const v1::WorkerStart& message) const {
  LOCKSTEP_RETURN_IF_ERROR(parts_.fence->CheckIdentity(DecodeIdentity(message.ticket().worker())));
  LOCKSTEP_RETURN_IF_ERROR(parts_.fence->CheckTicketEpoch(base::Epoch(message.ticket().epoch())));
  return DecodeStart(message, parts_.clock->Now());
}

void RunHandler::StartSequences(const v1::WorkerCommand& command) {
  if (command.start().empty()) return;
  v1::WorkerFrame refusals;
  std::vector<SequenceStart> starts;
  for (const v1::WorkerStart& message : command.start()) {
    const uint64_t ticket = message.ticket().ticket_id();
    absl::StatusOr<SequenceStart> start = CheckStart(message);
    if (!start.ok()) {
      AddRefusal(ticket, start.status(), &refusals);
      continue;
    }
    if (!parts_.streams->Bind(*start, rpc::SharedFrom(this))) {
      AddRefusal(ticket, absl::AlreadyExistsError("ticket: it runs already"), &refusals);
      continue;
    }
    starts.push_back(*std::move(start));
  }
  std::vector<base::TicketId> tickets;
  for (const SequenceStart& start : starts) tickets.push_back(start.ticket);
  const std::vector<absl::Status> statuses = parts_.engine->Start(std::move(starts));
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (statuses[i].ok()) continue;
    parts_.streams->Unbind(tickets[i], statuses[i]);
    AddRefusal(tickets[i].value(), statuses[i], &refusals);
  }
  if (!refusals.refusals().empty()) {
    *refusals.mutable_worker() = EncodeIdentity(parts_.fence->identity());
    SendFrame(std::move(refusals));
  }
}

void RunHandler::OnHalfClose() {
  DropSequences();
  Finish(absl::OkStatus());
}

void RunHandler::DropSequences() {
  for (const base::TicketId ticket : parts_.streams->Drop(this)) parts_.engine->Cancel(ticket);
}

}  // namespace lockstep::worker
