#include <cuda_runtime.h>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/device/attention_copies_sm90.cuh"
#include "kernels/cuda/device/attention_decode.cuh"
#include "kernels/cuda/device/attention_prefill.cuh"
#include "kernels/cuda/device/attention_products_sm90.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Sm90Kernels {
  template <int kHeadDim, int kBlock>
  static cudaError_t Decode(const AttentionCall& call, cudaStream_t stream) {
    return LaunchKernel(AttentionDecodeKernel<kHeadDim, kBlock, BulkCopies>, DecodeGrid(call),
                        dim3(kDecodeCtaThreads), sizeof(DecodeShared<kHeadDim, kBlock, BulkCopies>),
                        stream, ParametersOf(call));
  }

  template <int kHeadDim, int kBlock>
  static cudaError_t Prefill(const AttentionCall& call, cudaStream_t stream) {
    return call.schedule.prefill_rows == 128 ? PrefillBy<kHeadDim, kBlock, 2>(call, stream)
                                             : PrefillBy<kHeadDim, kBlock, 1>(call, stream);
  }

  template <int kHeadDim, int kBlock, int kWarpgroups>
  static cudaError_t PrefillBy(const AttentionCall& call, cudaStream_t stream) {
    using Products = WgmmaProducts<kHeadDim, kBlock, kWarpgroups>;
    return LaunchKernel(AttentionPrefillKernel<kHeadDim, kBlock, kWarpgroups, Products, BulkCopies>,
                        PrefillGrid(call), dim3(kWarpgroups * 128 + Products::kCopyThreads),
                        sizeof(PrefillShared<kHeadDim, kBlock, kWarpgroups, Products::kStages>),
                        stream, ParametersOf(call));
  }
};

}  // namespace

cudaError_t AttentionOnSm90(const AttentionCall& call, cudaStream_t stream) {
  return LaunchAttention<Sm90Kernels>(call, stream);
}

}  // namespace lockstep::kernels::cuda
