#pragma once

#include <memory>
#include <optional>

#include "common/rpc/handler.h"
#include "lockstep/v1/scheduler.pb.h"
#include "services/scheduler/core_host.h"

namespace lockstep::scheduler {

// One router's Admit stream. Events that the router does not read fast enough are merged into one,
// which is bounded: a router that reads nothing loses its stream.
class AdmitHandler final : public rpc::BidiHandler<v1::AdmitCommand, v1::AdmitEvent>,
                           public AdmitSink {
 public:
  AdmitHandler(std::shared_ptr<CoreHost> host, std::string cluster_id,
               grpc::CallbackServerContext* context);

  void Send(v1::AdmitEvent event) override;
  void Close(absl::Status status) override { Finish(std::move(status)); }

 private:
  void Start() override { RequestRead(); }
  void OnMessage(v1::AdmitCommand& command) override;
  void OnHalfClose() override;
  void OnOutboxDrained() override;
  void OnClosed(const absl::Status& status) override;
  absl::Status Open(const v1::AdmitCommand& first);
  void SendPendingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pending_mutex_);

  const std::shared_ptr<CoreHost> host_;
  const std::string cluster_id_;
  std::optional<RouterStream> stream_;  // Of the read callbacks, and of the last one after them.
  base::Mutex pending_mutex_;
  v1::AdmitEvent pending_ ABSL_GUARDED_BY(pending_mutex_);
  bool has_pending_ ABSL_GUARDED_BY(pending_mutex_) = false;
};

}  // namespace lockstep::scheduler
