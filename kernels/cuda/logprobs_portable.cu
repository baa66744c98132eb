#include <cuda_runtime.h>

#include "kernels/cuda/device/logprobs.cuh"
#include "kernels/cuda/device/row_cta.cuh"
#include "kernels/cuda/vocabulary_launch.h"

namespace lockstep::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kVocabularyThreads, 2)
    LogprobsCtaKernel(const __grid_constant__ LogprobArgs args, float* scratch) {
  __shared__ LogprobShared<CtaRow> shared;
  float* const memory = scratch + blockIdx.x * CtaRowElements(args.vocabulary);
  for (int row = static_cast<int>(blockIdx.x); row < args.rows;
       row += static_cast<int>(gridDim.x)) {
    LogprobsOfRow<CtaRow>(args, row, memory, shared);
    __syncthreads();  // Nobody looks at this row any more.
  }
}

}  // namespace

cudaError_t LogprobsPortable(const LogprobArgs& args, const VocabularySchedule& schedule,
                             cudaStream_t stream) {
  return LaunchCtaRows(LogprobsCtaKernel, args, schedule, stream);
}

}  // namespace lockstep::kernels::cuda
