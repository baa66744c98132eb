#include "services/scheduler/watch_handler.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::scheduler {

WatchHandler::WatchHandler(std::shared_ptr<CoreHost> host, std::string cluster_id,
                           grpc::CallbackServerContext* context,
                           const v1::WatchWorkersRequest* request)
    : ServerStreamHandler(context, request, {.messages_max = 1}),
      host_(std::move(host)),
      cluster_id_(std::move(cluster_id)) {}

void WatchHandler::Start() {
  if (request().cluster_id() != cluster_id_) {
    return Finish(absl::FailedPreconditionError(
        absl::StrCat("cluster_id: \"", request().cluster_id(), "\" is not this cluster, \"",
                     cluster_id_, "\"")));
  }
  if (absl::Status status = host_->OpenWatch(this); !status.ok()) Finish(std::move(status));
}

void WatchHandler::OnClosed(const absl::Status& /*status*/) { host_->CloseWatch(this); }

void WatchHandler::Send(std::shared_ptr<const v1::WorkerSnapshot> snapshot) {
  base::MutexLock lock(&latest_mutex_);
  latest_ = std::move(snapshot);
  SendLatestLocked();
}

void WatchHandler::OnOutboxDrained() {
  base::MutexLock lock(&latest_mutex_);
  if (latest_ != nullptr) SendLatestLocked();
}

void WatchHandler::SendLatestLocked() {
  v1::WorkerSnapshot copy = *latest_;
  if (Write(std::move(copy)) != rpc::WriteResult::kFull) latest_.reset();
}

}  // namespace lockstep::scheduler
