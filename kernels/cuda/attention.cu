#include <cuda_runtime.h>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/attention_plan.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {

cudaError_t PlanAttention(const AttentionCall& call, cudaStream_t stream) {
  if (!IsSupported(call)) return cudaErrorInvalidValue;
  const int unit_rows = call.schedule.split_decode ? kUnitRows : 0;
  return LaunchKernel(AttentionPlanKernel, dim3(1), dim3(kPlanThreads), 0, stream,
                      ParametersOf(call), unit_rows);
}

cudaError_t Attention(const AttentionCall& call, cudaStream_t stream) {
  if (!IsSupported(call)) return cudaErrorInvalidValue;
  return call.schedule.path == KernelPath::kSm90 ? AttentionOnSm90(call, stream)
                                                 : AttentionPortable(call, stream);
}

}  // namespace lockstep::kernels::cuda
