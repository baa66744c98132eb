#include <cuda_runtime.h>

#include "kernels/cuda/device/row_cluster_sm90.cuh"
#include "kernels/cuda/device/sample.cuh"
#include "kernels/cuda/vocabulary_launch.h"

namespace lockstep::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kVocabularyThreads, 2)
    SampleClusterKernel(const __grid_constant__ SampleArgs args) {
  extern __shared__ float4 dynamic_shared[];
  __shared__ SampleShared<ClusterRow> shared;
  SampleRow<ClusterRow>(args, static_cast<int>(blockIdx.x) / CtasInCluster(),
                        reinterpret_cast<float*>(dynamic_shared), shared);
}

}  // namespace

cudaError_t SampleOnSm90(const SampleArgs& args, const VocabularySchedule& schedule,
                         cudaStream_t stream) {
  if (schedule.cluster < 1) return cudaErrorInvalidValue;
  const size_t ids = static_cast<size_t>(IdsPerCta(args.vocabulary, schedule.cluster));
  return LaunchRows(SampleClusterKernel, args.rows, schedule.cluster, ids * sizeof(float), stream,
                    args);
}

}  // namespace lockstep::kernels::cuda
