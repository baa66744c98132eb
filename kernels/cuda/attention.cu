#include <cuda_runtime.h>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/device/attention_decode_sm90.cuh"
#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/attention_plan.cuh"
#include "kernels/cuda/device/attention_prefill_sm90.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

// Decode CTAs that a multiprocessor holds at once; shared memory sets it.
constexpr int kDecodeCtas = 2;

template <int kHeadDim, int kBlock>
cudaError_t LaunchDecode(const AttentionCall& call, cudaStream_t stream) {
  using Shared = DecodeShared<kHeadDim, kBlock>;
  const int grid = call.schedule.multiprocessors * kDecodeCtas;
  return LaunchKernel(AttentionDecodeKernel<kHeadDim, kBlock>, dim3(static_cast<unsigned>(grid)),
                      dim3(kDecodeCtaThreads), sizeof(Shared), stream, ParametersOf(call));
}

template <int kHeadDim, int kBlock, int kWarpgroups, typename Products>
cudaError_t LaunchPrefill(const AttentionCall& call, cudaStream_t stream) {
  using Shared = PrefillShared<kHeadDim, kBlock, kWarpgroups>;
  const StepShape& shape = call.args.shape;
  const dim3 grid(static_cast<unsigned>(TilesMax(shape.rows, shape.sequences, TileTokens(call))),
                  static_cast<unsigned>(call.args.kv_heads));
  return LaunchKernel(AttentionPrefillKernel<kHeadDim, kBlock, kWarpgroups, Products>, grid,
                      dim3(kWarpgroups * 128 + 128), sizeof(Shared), stream, ParametersOf(call));
}

template <int kHeadDim, int kBlock>
cudaError_t LaunchPrefillOf(const AttentionCall& call, cudaStream_t stream) {
  using Wgmma = WgmmaProducts<kHeadDim, kBlock>;
  using Mma = MmaProducts<kHeadDim, kBlock>;
  const bool wide = call.schedule.prefill_rows == 128;
  if (call.schedule.products == AttentionSchedule::Products::kWgmma) {
    return wide ? LaunchPrefill<kHeadDim, kBlock, 2, Wgmma>(call, stream)
                : LaunchPrefill<kHeadDim, kBlock, 1, Wgmma>(call, stream);
  }
  return wide ? LaunchPrefill<kHeadDim, kBlock, 2, Mma>(call, stream)
              : LaunchPrefill<kHeadDim, kBlock, 1, Mma>(call, stream);
}

template <int kHeadDim, int kBlock>
cudaError_t LaunchAll(const AttentionCall& call, cudaStream_t stream) {
  if (const cudaError_t error = LaunchDecode<kHeadDim, kBlock>(call, stream);
      error != cudaSuccess) {
    return error;
  }
  // A step with as many sequences as rows has no sequence with many rows.
  const bool decode_only = call.args.shape.rows <= call.args.shape.sequences;
  if (decode_only && call.schedule.split_decode) return cudaSuccess;
  return LaunchPrefillOf<kHeadDim, kBlock>(call, stream);
}

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
  if (call.args.head_dim == 64) {
    return call.kv_block == 64 ? LaunchAll<64, 64>(call, stream) : LaunchAll<64, 128>(call, stream);
  }
  return call.kv_block == 64 ? LaunchAll<128, 64>(call, stream) : LaunchAll<128, 128>(call, stream);
}

}  // namespace lockstep::kernels::cuda
