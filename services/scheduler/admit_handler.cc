#include "services/scheduler/admit_handler.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::scheduler {
namespace {

// More than any router has in work at once.
constexpr int kPendingOutcomesMax = 1 << 19;
constexpr size_t kMessagesMax = 4;

}  // namespace

AdmitHandler::AdmitHandler(std::shared_ptr<CoreHost> host, std::string cluster_id,
                           grpc::CallbackServerContext* context)
    : BidiHandler(context, {.messages_max = kMessagesMax}),
      host_(std::move(host)),
      cluster_id_(std::move(cluster_id)) {}

absl::Status AdmitHandler::Open(const v1::AdmitCommand& first) {
  if (first.cluster_id() != cluster_id_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cluster_id: \"", first.cluster_id(), "\" is not this cluster, \"", cluster_id_, "\""));
  }
  if (first.router_id().empty()) {
    return absl::InvalidArgumentError("router_id: required in the first message");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(stream_, host_->OpenRouter(first.router_id(), this));
  return absl::OkStatus();
}

void AdmitHandler::OnMessage(v1::AdmitCommand& command) {
  if (!stream_.has_value()) {
    if (absl::Status status = Open(command); !status.ok()) return Finish(std::move(status));
  }
  host_->OnAdmitCommand(*stream_, command);
  RequestRead();
}

void AdmitHandler::OnHalfClose() { Finish(absl::OkStatus()); }

void AdmitHandler::OnClosed(const absl::Status& /*status*/) {
  if (stream_.has_value()) host_->CloseRouter(*stream_);
}

void AdmitHandler::Send(v1::AdmitEvent event) {
  base::MutexLock lock(&pending_mutex_);
  const uint64_t epoch = event.admission_epoch();
  pending_.MergeFrom(event);
  pending_.set_admission_epoch(epoch);
  has_pending_ = true;
  SendPendingLocked();
}

void AdmitHandler::OnOutboxDrained() {
  base::MutexLock lock(&pending_mutex_);
  if (has_pending_) SendPendingLocked();
}

void AdmitHandler::SendPendingLocked() {
  switch (Write(std::move(pending_))) {
    case rpc::WriteResult::kAccepted:
      pending_ = v1::AdmitEvent();
      has_pending_ = false;
      return;
    case rpc::WriteResult::kFull:
      if (pending_.outcomes_size() <= kPendingOutcomesMax) return;
      Abort(absl::ResourceExhaustedError("the router does not read its admission events"));
      return;
    case rpc::WriteResult::kClosed:
      pending_.Clear();
      has_pending_ = false;
      return;
  }
}

}  // namespace lockstep::scheduler
