#include "services/worker/certification.h"

#include <vector>

#include "common/base/status_macros.h"
#include "kernels/factory.h"

namespace lockstep::worker {

ModelOptions ModelOptionsOf(const WorkerOptions& options) {
  return {.model = options.model,
          .reduction_segments = static_cast<int>(options.reduction_segments),
          .split_kv_size = static_cast<int>(options.split_kv_size),
          .kv_bytes = options.kv_bytes,
          .sequences_max = static_cast<int>(options.sequences_max),
          .chunk_tokens = static_cast<int>(options.chunk_tokens),
          .context_tokens_max = static_cast<int>(options.context_tokens_max)};
}

absl::StatusOr<kernels::CertificationReport> CertifyModel(const WorkerOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<kernels::LinearLayer> layers,
                            LinearLayersOf(ModelOptionsOf(options)));
  return kernels::Certify(
      {.backend = options.backend, .certificates_path = options.certificates_path}, layers);
}

}  // namespace lockstep::worker
