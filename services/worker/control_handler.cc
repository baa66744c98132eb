#include "services/worker/control_handler.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/rpc/deadline.h"
#include "services/worker/codec.h"

namespace lockstep::worker {

void ControlHandler::Start() {
  // The engine may hang, and the thread that waits for it must not.
  if (absl::Status status = rpc::CheckHasDeadline(scope()); !status.ok()) return Respond(status);
  const bool posted = runner_->TryPost([self = rpc::SharedFrom(this), request = request()] {
    self->Respond(ExecuteControl(request, self->scope().deadline, self->parts_));
  });
  if (!posted) Respond(absl::ResourceExhaustedError("too many control calls wait"));
}

absl::StatusOr<v1::ControlResponse> ExecuteControl(const v1::ControlRequest& request,
                                                   absl::Time deadline, const WorkerParts& parts) {
  LOCKSTEP_RETURN_IF_ERROR(parts.fence->CheckIdentity(DecodeIdentity(request.worker())));
  LOCKSTEP_RETURN_IF_ERROR(parts.fence->AdvanceEpochs(request.scheduler_epoch(),
                                                      base::Epoch(request.admission_epoch())));
  v1::ControlResponse response;
  if (!request.query_only()) {
    LOCKSTEP_RETURN_IF_ERROR(parts.engine->SetHold(request.hold(), deadline));
    int64_t aborted = 0;
    if (request.abort_request_ids_size() > 0) {
      std::vector<base::RequestId> ids;
      for (const std::string& id : request.abort_request_ids()) ids.emplace_back(id);
      LOCKSTEP_ASSIGN_OR_RETURN(const EngineLoop::Aborted ended,
                                parts.engine->AbortRequests(std::move(ids), deadline));
      aborted += ended.sequences;
      for (const base::RequestId& id : ended.known) response.add_known_request_ids(id.value());
    }
    if (request.abort_all()) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const int64_t ended,
          parts.engine->AbortOlderThan(base::Epoch(request.admission_epoch()), deadline));
      aborted += ended;
    }
    response.set_aborted_sequences(aborted);
    if (request.flush_cache()) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const int64_t freed,
          parts.engine->FlushCache(request.has_flush_namespace()
                                       ? std::optional(request.flush_namespace())
                                       : std::nullopt,
                                   deadline));
      response.set_freed_blocks(freed);
    }
  }
  response.set_running_sequences(static_cast<int64_t>(parts.engine->Snapshot().held.size()));
  return response;
}

}  // namespace lockstep::worker
