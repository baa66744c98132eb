#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "lockstep/v1/scheduler.pb.h"
#include "services/gateway/model_limits.h"

namespace lockstep::gateway {

ModelLimits LimitsFrom(const v1::GetClusterInfoResponse& info, int64_t message_bytes_max);

// What the gateway makes ids from text by, and text from ids.
struct OwnTokenizer {
  std::string file;    // As errors name it.
  std::string digest;  // As in ContractFingerprint.
};

// The last answer of the scheduler about the cluster; stays valid while the scheduler is away.
// Thread-safe.
class ClusterView {
 public:
  // `own` is nothing where the gateway serves ids only: those are any model's.
  explicit ClusterView(std::optional<OwnTokenizer> own) : own_(std::move(own)) {}

  void Update(const v1::GetClusterInfoResponse& info, int64_t message_bytes_max);
  // What requests are checked by. UNAVAILABLE, retryable, until a worker was seen;
  // FAILED_PRECONDITION, naming both digests, as long as the workers' tokenizer is not the
  // gateway's: texts would become other ids than the model's, and ids other texts.
  absl::StatusOr<std::shared_ptr<const ModelLimits>> Limits() const;

  struct Facts {
    std::shared_ptr<const ModelLimits> limits;
    v1::GetClusterInfoResponse info;
  };
  // What the cluster is, also where the gateway does not fit it. UNAVAILABLE as above.
  absl::StatusOr<Facts> Look() const;

 private:
  const std::optional<OwnTokenizer> own_;
  mutable base::Mutex mutex_;
  absl::Status fit_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const ModelLimits> limits_ ABSL_GUARDED_BY(mutex_);
  v1::GetClusterInfoResponse info_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::gateway
