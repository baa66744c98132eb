#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "lockstep/v1/scheduler.pb.h"
#include "services/gateway/model_limits.h"

namespace lockstep::gateway {

ModelLimits LimitsFrom(const v1::GetClusterInfoResponse& info, int64_t message_bytes_max);

// The last answer of the scheduler about the cluster; stays valid while the scheduler is away.
// Thread-safe.
class ClusterView {
 public:
  void Update(const v1::GetClusterInfoResponse& info, int64_t message_bytes_max);
  // UNAVAILABLE, retryable, until a worker was seen.
  absl::StatusOr<std::shared_ptr<const ModelLimits>> Limits() const;
  absl::StatusOr<v1::GetClusterInfoResponse> Info() const;

 private:
  mutable base::Mutex mutex_;
  std::shared_ptr<const ModelLimits> limits_ ABSL_GUARDED_BY(mutex_);
  v1::GetClusterInfoResponse info_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::gateway
