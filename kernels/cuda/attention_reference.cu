#include <cuda_runtime.h>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/attention_reference.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {

cudaError_t AttentionReference(const AttentionCall& call, cudaStream_t stream) {
  if (!IsSupported(call)) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(call.args.shape.rows),
                  static_cast<unsigned>(call.args.q_heads));
  const auto kernel =
      call.args.head_dim == 64 ? AttentionReferenceKernel<64> : AttentionReferenceKernel<128>;
  return LaunchKernel(kernel, grid, dim3(32), 0, stream, ParametersOf(call), call.kv_block);
}

}  // namespace lockstep::kernels::cuda
