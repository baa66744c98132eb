#pragma once

#include <memory>
#include <string>

#include "common/rpc/handler.h"
#include "lockstep/v1/scheduler.pb.h"
#include "services/scheduler/core_host.h"

namespace lockstep::scheduler {

// One WatchWorkers stream. While the client does not read, only the newest snapshot is kept.
class WatchHandler final
    : public rpc::ServerStreamHandler<v1::WatchWorkersRequest, v1::WorkerSnapshot>,
      public WatchSink {
 public:
  WatchHandler(std::shared_ptr<CoreHost> host, std::string cluster_id,
               grpc::CallbackServerContext* context, const v1::WatchWorkersRequest* request);

  void Send(std::shared_ptr<const v1::WorkerSnapshot> snapshot) override;
  void Close(absl::Status status) override { Finish(std::move(status)); }

 private:
  void Start() override;
  void OnOutboxDrained() override;
  void OnClosed(const absl::Status& status) override;
  void SendLatestLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(latest_mutex_);

  const std::shared_ptr<CoreHost> host_;
  const std::string cluster_id_;
  base::Mutex latest_mutex_;
  // Not accepted by the outbox yet.
  std::shared_ptr<const v1::WorkerSnapshot> latest_ ABSL_GUARDED_BY(latest_mutex_);
};

}  // namespace lockstep::scheduler
