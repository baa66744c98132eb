#include <cuda_runtime.h>

#include "kernels/cuda/device/row_cta.cuh"
#include "kernels/cuda/device/sample.cuh"
#include "kernels/cuda/vocabulary_launch.h"

namespace lockstep::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kVocabularyThreads, 2)
    SampleCtaKernel(const __grid_constant__ SampleArgs args, float* scratch) {
  __shared__ SampleShared<CtaRow> shared;
  float* const memory = scratch + blockIdx.x * CtaRowElements(args.vocabulary);
  for (int row = static_cast<int>(blockIdx.x); row < args.rows;
       row += static_cast<int>(gridDim.x)) {
    SampleRow<CtaRow>(args, row, memory, shared);
    __syncthreads();  // Nobody looks at this row any more.
  }
}

}  // namespace

cudaError_t SamplePortable(const SampleArgs& args, const VocabularySchedule& schedule,
                           cudaStream_t stream) {
  return LaunchCtaRows(SampleCtaKernel, args, schedule, stream);
}

}  // namespace lockstep::kernels::cuda
