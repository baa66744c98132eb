#include "services/gateway/cluster_view.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/gateway/receipt.h"

namespace lockstep::gateway {
namespace {

absl::Status NoWorkerYet() {
  return absl::UnavailableError("no worker has joined the cluster yet");
}

absl::Status CheckFit(const std::optional<OwnTokenizer>& own,
                      const v1::ContractFingerprint& cluster) {
  if (!own.has_value() || own->digest == cluster.tokenizer_digest()) return absl::OkStatus();
  const std::string theirs =
      cluster.tokenizer_digest().empty()
          ? "have none: their model's directory lacks the file"
          : absl::StrCat("have one of tokenizer_digest ", cluster.tokenizer_digest());
  return absl::FailedPreconditionError(absl::StrCat(
      "this gateway has another tokenizer than the cluster's workers: ", own->file, " has digest ",
      own->digest, ", and they ", theirs,
      "; tokenizer_dir must be the directory of the workers' model, and is read when the gateway "
      "starts"));
}

}  // namespace

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
  absl::Status fit = CheckFit(own_, info.fingerprint());
  base::MutexLock lock(&mutex_);
  fit_ = std::move(fit);
  limits_ = std::move(limits);
  info_ = info;
}

absl::StatusOr<std::shared_ptr<const ModelLimits>> ClusterView::Limits() const {
  base::MutexLock lock(&mutex_);
  if (limits_ == nullptr) return NoWorkerYet();
  LOCKSTEP_RETURN_IF_ERROR(fit_);
  return limits_;
}

absl::StatusOr<ClusterView::Facts> ClusterView::Look() const {
  base::MutexLock lock(&mutex_);
  if (limits_ == nullptr) return NoWorkerYet();
  return Facts{.limits = limits_, .info = info_};
}

}  // namespace lockstep::gateway
