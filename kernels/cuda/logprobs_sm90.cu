#include <cuda_runtime.h>

#include "kernels/cuda/device/logprobs.cuh"
#include "kernels/cuda/device/row_cluster_sm90.cuh"
#include "kernels/cuda/vocabulary_launch.h"

namespace lockstep::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kVocabularyThreads, 2)
    LogprobsClusterKernel(const __grid_constant__ LogprobArgs args) {
  extern __shared__ float4 dynamic_shared[];
  __shared__ LogprobShared<ClusterRow> shared;
  LogprobsOfRow<ClusterRow>(args, static_cast<int>(blockIdx.x) / CtasInCluster(),
                            reinterpret_cast<float*>(dynamic_shared), shared);
}

}  // namespace

cudaError_t LogprobsOnSm90(const LogprobArgs& args, const VocabularySchedule& schedule,
                           cudaStream_t stream) {
  if (schedule.cluster < 1) return cudaErrorInvalidValue;
  return LaunchRows(LogprobsClusterKernel, args.rows, schedule.cluster,
                    ClusterRowBytes(TilesPerCta(args.vocabulary, schedule.cluster)), stream, args);
}

}  // namespace lockstep::kernels::cuda
