#include "kernels/cuda/runtime/stream.h"

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<Stream> CreateStream(StreamPriority priority) {
  int lowest = 0;
  int highest = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "stream"));
  const int wanted = priority == StreamPriority::kHigh ? highest : lowest;
  cudaStream_t stream = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, wanted), "stream"));
  return Stream(stream);
}

}  // namespace lockstep::kernels::cuda
