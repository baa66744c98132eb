#include <cuda_runtime.h>

#include "kernels/cuda/device/logprobs_sm90.cuh"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/vocabulary_launch.h"

namespace lockstep::kernels::cuda {

cudaError_t Logprobs(const LogprobArgs& args, const VocabularySchedule& schedule,
                     cudaStream_t stream) {
  if (args.rows < 0 || args.vocabulary <= 0 || TilesOf(args.vocabulary) > kTilesMax ||
      schedule.cluster < 1) {
    return cudaErrorInvalidValue;
  }
  const size_t tiles = static_cast<size_t>(TilesPerCta(args.vocabulary, schedule.cluster));
  return LaunchRows(LogprobsKernel, args.rows, schedule.cluster,
                    tiles * (kTileIds + kTileSums) * sizeof(float), stream, args);
}

}  // namespace lockstep::kernels::cuda
