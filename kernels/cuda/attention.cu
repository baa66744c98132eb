#include <cuda_runtime.h>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/attention_plan.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

// Whole sequences as units save what merging costs, and are good work for as long as the last of
// them leave few multiprocessors without any.
UnitChoice ChoiceOf(const AttentionCall& call) {
  constexpr int kWholeSplitsMax = 4;
  const int units = call.args.shape.sequences * call.args.kv_heads;
  const int places = call.schedule.multiprocessors * kDecodeCtas;
  const int rounds = (units + places - 1) / places;
  const bool fills = units * 10 >= rounds * places * 9;
  const bool whole = call.schedule.whole_sequences;
  return {.rows_max = call.schedule.split_decode ? kUnitRows : 0,
          .splits_whole_max = whole && fills ? kWholeSplitsMax : 1,
          .tail_tokens_max = whole ? call.kv_block : 0};
}

}  // namespace

cudaError_t PlanAttention(const AttentionCall& call, cudaStream_t stream) {
  if (!IsSupported(call)) return cudaErrorInvalidValue;
  return LaunchKernel(AttentionPlanKernel, dim3(1), dim3(kPlanThreads), 0, stream,
                      ParametersOf(call), ChoiceOf(call));
}

cudaError_t Attention(const AttentionCall& call, cudaStream_t stream) {
  if (!IsSupported(call)) return cudaErrorInvalidValue;
  return call.schedule.path == KernelPath::kSm90 ? AttentionOnSm90(call, stream)
                                                 : AttentionPortable(call, stream);
}

}  // namespace lockstep::kernels::cuda
