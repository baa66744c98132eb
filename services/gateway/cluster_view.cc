#include "services/gateway/cluster_view.h"

#include <utility>

#include "services/gateway/receipt.h"

namespace lockstep::gateway {

ModelLimits LimitsFrom(const v1::GetClusterInfoResponse& info, int64_t message_bytes_max) {
  ModelLimits limits;
  limits.model_name = info.model().name();
  limits.vocabulary = info.model().vocabulary();
  limits.context_tokens_max = info.context_tokens_max();
  limits.kv_tokens_max = info.kv_blocks_largest_worker() * info.kv_block_tokens();
  limits.message_bytes_max = message_bytes_max;
  limits.eos_ids.assign(info.model().eos_ids().begin(), info.model().eos_ids().end());
  limits.generation_config_json = info.model().generation_config_json();
  limits.fingerprint = info.fingerprint();
  limits.fingerprint_digest = FingerprintDigest(info.fingerprint());
  limits.weight_version = info.weight_version();
  limits.weights_digest = info.weights_digest();
  return limits;
}

void ClusterView::Update(const v1::GetClusterInfoResponse& info, int64_t message_bytes_max) {
  auto limits = std::make_shared<const ModelLimits>(LimitsFrom(info, message_bytes_max));
  base::MutexLock lock(&mutex_);
  limits_ = std::move(limits);
  info_ = info;
}

absl::StatusOr<std::shared_ptr<const ModelLimits>> ClusterView::Limits() const {
  base::MutexLock lock(&mutex_);
  if (limits_ == nullptr) return absl::UnavailableError("no worker has joined the cluster yet");
  return limits_;
}

absl::StatusOr<v1::GetClusterInfoResponse> ClusterView::Info() const {
  base::MutexLock lock(&mutex_);
  if (limits_ == nullptr) return absl::UnavailableError("no worker has joined the cluster yet");
  return info_;
}

}  // namespace lockstep::gateway
