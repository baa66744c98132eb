#include <cuda_runtime.h>

#include "kernels/cuda/device/qkv_prepare.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"

namespace lockstep::kernels::cuda {
namespace {

// Rows from which on one CTA a row fills the GPU.
constexpr int kManyRows = 128;

template <int kHeadDim, int kPasses>
cudaError_t LaunchPasses(const QkvPrepareParameters& parameters, int rows, cudaStream_t stream) {
  constexpr int kHeads = kPasses * kPrepareThreads / (kHeadDim / 8);
  const int heads = parameters.q_heads + 2 * parameters.kv_heads;
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((heads + kHeads - 1) / kHeads));
  return LaunchKernel(QkvPrepareKernel<kHeadDim, kPasses>, grid, dim3(kPrepareThreads), 0, stream,
                      parameters);
}

template <int kHeadDim>
cudaError_t Launch(const QkvPrepareParameters& parameters, int rows, cudaStream_t stream) {
  return rows < kManyRows ? LaunchPasses<kHeadDim, 1>(parameters, rows, stream)
                          : LaunchPasses<kHeadDim, 3>(parameters, rows, stream);
}

}  // namespace

cudaError_t QkvPrepare(const QkvPrepareCall& call, cudaStream_t stream) {
  const QkvPrepareArgs& args = call.args;
  const KvPool& pool = call.pool;
  if (args.shape.rows < 0 || args.q_heads <= 0 || args.kv_heads <= 0 ||
      pool.kv_heads != args.kv_heads || pool.head_dim != args.head_dim || args.layer < 0 ||
      args.layer >= pool.layers) {
    return cudaErrorInvalidValue;
  }
  if (args.head_dim != 64 && args.head_dim != 128) return cudaErrorInvalidValue;
  if (args.shape.rows == 0) return cudaSuccess;
  const QkvPrepareParameters parameters{
      .qkv = static_cast<uint16_t*>(args.qkv),
      .q_norm = args.q_norm,
      .k_norm = args.k_norm,
      .rope_table = args.rope_table,
      .positions = args.inputs.positions,
      .row_sequence = args.inputs.row_sequence,
      .block_table = args.inputs.block_table,
      .pool = pool,
      .blocks_max = args.shape.blocks_max,
      .q_heads = args.q_heads,
      .kv_heads = args.kv_heads,
      .layer = args.layer,
      .inverse_head_dim = 1.0f / static_cast<float>(args.head_dim),
      .epsilon = args.epsilon};
  return args.head_dim == 64 ? Launch<64>(parameters, args.shape.rows, stream)
                             : Launch<128>(parameters, args.shape.rows, stream);
}

}  // namespace lockstep::kernels::cuda
