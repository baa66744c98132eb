#include "services/worker/control_handler.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "services/worker/codec.h"

namespace lockstep::worker {

void ControlHandler::Start() {
  const bool posted = runner_->TryPost([self = rpc::SharedFrom(this), request = request()] {
    self->Respond(ExecuteControl(request, self->parts_));
  });
  if (!posted) Respond(absl::ResourceExhaustedError("too many control calls wait"));
}

absl::StatusOr<v1::ControlResponse> ExecuteControl(const v1::ControlRequest& request,
                                                   const WorkerParts& parts) {
  LOCKSTEP_RETURN_IF_ERROR(parts.fence->CheckIdentity(DecodeIdentity(request.worker())));
  LOCKSTEP_RETURN_IF_ERROR(parts.fence->AdvanceEpochs(request.scheduler_epoch(),
                                                      base::Epoch(request.admission_epoch())));
  v1::ControlResponse response;
  if (!request.query_only()) {
    parts.engine->SetHold(request.hold());
    int64_t aborted = 0;
    if (request.abort_request_ids_size() > 0) {
      std::vector<base::RequestId> ids;
      for (const std::string& id : request.abort_request_ids()) ids.emplace_back(id);
      std::vector<base::RequestId> known;
      aborted += parts.engine->AbortRequests(ids, &known);
      for (const base::RequestId& id : known) response.add_known_request_ids(id.value());
    }
    if (request.abort_all()) {
      aborted += parts.engine->AbortOlderThan(base::Epoch(request.admission_epoch()));
    }
    response.set_aborted_sequences(aborted);
    if (request.flush_cache()) {
      response.set_freed_blocks(parts.engine->FlushCache(
          request.has_flush_namespace() ? std::optional(request.flush_namespace()) : std::nullopt));
    }
  }
  response.set_running_sequences(static_cast<int64_t>(parts.engine->Snapshot().held.size()));
  return response;
}

}  // namespace lockstep::worker
