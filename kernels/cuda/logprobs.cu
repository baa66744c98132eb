#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/vocabulary_launch.h"

namespace lockstep::kernels::cuda {

size_t VocabularyScratchBytes(int vocabulary, int rows) {
  return CtaRowElements(vocabulary) * sizeof(float) * static_cast<size_t>(rows);
}

int VocabularyMax(const VocabularySchedule& schedule) {
  const int tiles_of_cta = static_cast<int>(kVocabularySharedMax / ClusterRowBytes(1));
  return std::min(kTilesMax, tiles_of_cta * schedule.cluster) * kTileIds;
}

cudaError_t Logprobs(const LogprobArgs& args, const VocabularySchedule& schedule,
                     cudaStream_t stream) {
  if (args.rows < 0 || args.vocabulary <= 0 || TilesOf(args.vocabulary) > kTilesMax) {
    return cudaErrorInvalidValue;
  }
  return schedule.path == KernelPath::kSm90 ? LogprobsOnSm90(args, schedule, stream)
                                            : LogprobsPortable(args, schedule, stream);
}

}  // namespace lockstep::kernels::cuda
