#pragma once

#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/rpc/channel_pool.h"
#include "services/scheduler/worker_control.h"

namespace lockstep::scheduler {

// WorkerService.Control over gRPC: at most one call under way a worker, the next ones wait behind
// it, so that they cannot overtake each other. Thread-safe.
class GrpcWorkerControl final : public WorkerControl {
 public:
  GrpcWorkerControl(std::string cluster_id, rpc::ChannelOptions channel);
  // Cancels what is under way; its `done` may still run afterwards.
  ~GrpcWorkerControl() override;

  void Call(const ControlCall& call, absl::Duration timeout, Done done) override;
  void Forget(const std::string& address) override;

 private:
  class Line;
  std::shared_ptr<Line> LineOf(const std::string& address);

  const std::string cluster_id_;
  rpc::ChannelPool channels_;
  base::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Line>> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::scheduler
