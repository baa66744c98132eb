#include "services/worker/worker_options.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "kernels/factory.h"
#include "services/worker/model/model_name.h"

namespace lockstep::worker {
namespace {

using service::CheckRequired;
using service::IntegerOr;

// Prefill tokens of a step: as many as keep the backend busy, and no more than running sequences
// would like to wait for.
constexpr int64_t kCpuChunkTokens = 512;
constexpr int64_t kCudaChunkTokens = 8192;

// A whole number of splits, at least one.
int64_t DefaultChunkTokens(const WorkerOptions& options) {
  const int64_t wanted = options.backend == "cuda" ? kCudaChunkTokens : kCpuChunkTokens;
  return std::max(options.split_kv_size, wanted / options.split_kv_size * options.split_kv_size);
}

absl::Status CheckRanks(const WorkerOptions& options) {
  if (!std::has_single_bit(static_cast<uint64_t>(options.tensor_parallel))) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_parallel: ", options.tensor_parallel, " is no power of two"));
  }
  if (options.tensor_parallel > options.reduction_segments) {
    return absl::InvalidArgumentError(absl::StrCat("tensor_parallel: ", options.tensor_parallel,
                                                   " is more than reduction_segments, ",
                                                   options.reduction_segments));
  }
  if (options.tensor_parallel > 1 && options.model == kNullModel) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_parallel: ", options.tensor_parallel,
                     " of the null model, which has no weights to share"));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const WorkerOptions& options) {
  if ((options.reduction_segments & (options.reduction_segments - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduction_segments: ", options.reduction_segments, " is no power of two"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRanks(options));
  if (options.chunk_tokens % options.split_kv_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_tokens: ", options.chunk_tokens,
                                                   " is no multiple of split_kv_size ",
                                                   options.split_kv_size));
  }
  if (options.backend != "cuda" && !options.certificates_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("certificates_path: backend ", options.backend, " has no certificates"));
  }
  if (options.backend != "cuda" && options.normal) {
    return absl::InvalidArgumentError(
        absl::StrCat("mode: backend ", options.backend, " has no normal mode"));
  }
  return absl::OkStatus();
}

absl::Status CheckShadows(const WorkerOptions& options) {
  if (options.shadow_every_steps == 0) return absl::OkStatus();
  const char* missing = nullptr;
  if (options.model == kNullModel || options.backend != "cuda") {
    missing = "a backend with a normal mode, which is cuda";
  } else if (options.normal) {
    missing = "mode deterministic";
  } else if (options.tensor_parallel > 1) {
    missing = "tensor_parallel 1";
  }
  if (missing == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("shadow_every_steps: ", options.shadow_every_steps, " needs ", missing));
}

}  // namespace

absl::StatusOr<WorkerOptions> ReadWorkerOptions(const config::v1::WorkerConfig& config) {
  WorkerOptions o;
  LOCKSTEP_ASSIGN_OR_RETURN(o.server, service::ReadServerSettings(config.server()));
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired("worker_id", config.worker_id()));
  LOCKSTEP_RETURN_IF_ERROR(service::CheckRequiredTarget("scheduler", config.scheduler()));
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired("model", config.model()));
  o.worker_id = config.worker_id();
  o.advertise = config.advertise();
  if (!o.advertise.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(base::CheckTarget("advertise", o.advertise));
  }
  o.scheduler = config.scheduler();
  o.model = config.model();
  o.backend = config.backend().empty() ? "cpu" : config.backend();
  o.certificates_path = config.certificates_path();
  o.prefix_cache = !config.disable_prefix_cache();
  LOCKSTEP_ASSIGN_OR_RETURN(o.normal, service::IsNormalMode(config.mode()));
  LOCKSTEP_ASSIGN_OR_RETURN(o.threads, IntegerOr("threads", config.threads(), 0, 1, 1024));
  LOCKSTEP_ASSIGN_OR_RETURN(o.reduction_segments,
                            IntegerOr("reduction_segments", config.reduction_segments(), 1, 1, 64));
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.tensor_parallel,
      IntegerOr("tensor_parallel", config.tensor_parallel(), 1, 1, kernels::kRanksMax));
  LOCKSTEP_ASSIGN_OR_RETURN(const int split_default, kernels::DefaultSplitKvSize(o.backend));
  LOCKSTEP_ASSIGN_OR_RETURN(o.split_kv_size, IntegerOr("split_kv_size", config.split_kv_size(),
                                                       split_default, 16, 65536));
  LOCKSTEP_ASSIGN_OR_RETURN(o.kv_bytes,
                            IntegerOr("kv_bytes", config.kv_bytes(), 0, 1, int64_t{1} << 44));
  LOCKSTEP_ASSIGN_OR_RETURN(o.sequences_max,
                            IntegerOr("sequences_max", config.sequences_max(), 256, 1, 8192));
  LOCKSTEP_ASSIGN_OR_RETURN(o.chunk_tokens, IntegerOr("chunk_tokens", config.chunk_tokens(),
                                                      DefaultChunkTokens(o), 16, 1 << 20));
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.context_tokens_max,
      IntegerOr("context_tokens_max", config.context_tokens_max(), 0, 1, 1 << 24));
  LOCKSTEP_ASSIGN_OR_RETURN(o.waiting_max,
                            IntegerOr("waiting_max", config.waiting_max(), 4096, 1, 1 << 20));
  LOCKSTEP_ASSIGN_OR_RETURN(o.weight_version, IntegerOr("weight_version", config.weight_version(),
                                                        1, 1, int64_t{1} << 62));
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.shadow_every_steps,
      IntegerOr("shadow_every_steps", config.shadow_every_steps(), 0, 1, int64_t{1} << 30));
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(o));
  LOCKSTEP_RETURN_IF_ERROR(CheckShadows(o));
  return o;
}

}  // namespace lockstep::worker
