#include <cuda_runtime.h>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/device/attention_copies_async.cuh"
#include "kernels/cuda/device/attention_decode.cuh"
#include "kernels/cuda/device/attention_prefill.cuh"
#include "kernels/cuda/device/attention_products_mma.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct PortableKernels {
  template <int kHeadDim, int kBlock>
  static cudaError_t Decode(const AttentionCall& call, cudaStream_t stream) {
    // As many on their way as the ring has stages: the copying warp waits for one when none is
    // left. A unit has at least three copies, so that it may wait for the slot of queries, too.
    using Copies = AsyncCopies<3>;
    static_assert(Copies::kDecodeStages == 4);
    return LaunchInOrder(AttentionDecodeKernel<kHeadDim, kBlock, Copies>, DecodeGrid(call),
                         dim3(kDecodeCtaThreads), sizeof(DecodeShared<kHeadDim, kBlock, Copies>),
                         stream, ParametersOf(call));
  }

  template <int kHeadDim, int kBlock>
  static cudaError_t Prefill(const AttentionCall& call, cudaStream_t stream) {
    constexpr int kWarpgroups = kPortablePrefillRows / 64;
    using Products = MmaProducts<kHeadDim, kBlock>;
    // Two rings take turns.
    using Copies = AsyncCopies<2 * (Products::kStages - 1)>;
    return LaunchInOrder(AttentionPrefillKernel<kHeadDim, kBlock, kWarpgroups, Products, Copies>,
                         PrefillGrid(call), dim3(kPortablePrefillRows * 2 + Products::kCopyThreads),
                         sizeof(PrefillShared<kHeadDim, kBlock, kWarpgroups, Products::kStages>),
                         stream, ParametersOf(call));
  }
};

}  // namespace

cudaError_t AttentionPortable(const AttentionCall& call, cudaStream_t stream) {
  return LaunchAttention<PortableKernels>(call, stream);
}

}  // namespace lockstep::kernels::cuda
