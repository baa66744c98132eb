#include <cuda_runtime.h>

#include "kernels/cuda/device/count_drawn.cuh"
#include "kernels/cuda/device/noise.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/vocabulary_launch.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kNoiseThreads = 256;

dim3 NoiseGrid(int threads) {
  return dim3(static_cast<unsigned>((threads + kNoiseThreads - 1) / kNoiseThreads));
}

}  // namespace

cudaError_t Sample(const SampleArgs& args, const VocabularySchedule& schedule,
                   cudaStream_t stream) {
  if (args.rows < 0 || args.vocabulary_sampled <= 0 || args.vocabulary_sampled > args.vocabulary ||
      TilesOf(args.vocabulary) > kTilesMax) {
    return cudaErrorInvalidValue;
  }
  return schedule.path == KernelPath::kSm90 ? SampleOnSm90(args, schedule, stream)
                                            : SamplePortable(args, schedule, stream);
}

cudaError_t CountDrawn(const CountDrawnArgs& args, cudaStream_t stream) {
  if (args.rows < 0) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  return LaunchKernel(CountDrawnKernel, dim3(static_cast<unsigned>(args.rows)), dim3(kCountThreads),
                      0, stream, args);
}

cudaError_t Noise(const NoiseArgs& args, cudaStream_t stream) {
  if (args.vocabulary <= 0) return cudaErrorInvalidValue;
  return LaunchKernel(NoiseKernel, NoiseGrid((args.vocabulary + 3) / 4), dim3(kNoiseThreads), 0,
                      stream, args.sub_seed, args.position, args.vocabulary, args.noise);
}

cudaError_t NoiseOfWords(const NoiseOfWordsArgs& args, cudaStream_t stream) {
  if (args.count <= 0) return cudaErrorInvalidValue;
  return LaunchKernel(NoiseOfWordsKernel, NoiseGrid(args.count), dim3(kNoiseThreads), 0, stream,
                      args.words, args.count, args.noise, args.bounds, args.limits);
}

}  // namespace lockstep::kernels::cuda
