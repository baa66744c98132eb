#include "kernels/cuda/runtime/stream.h"

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<Stream> CreateStream() {
  cudaStream_t stream = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"));
  return Stream(stream);
}

}  // namespace lockstep::kernels::cuda
