#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

// Steps that the entries of attention share.
namespace lockstep::kernels::cuda {

// Whether the call's shapes are ones that the kernels have.
inline bool IsSupported(const AttentionCall& call) {
  const AttentionArgs& args = call.args;
  if (args.kv_heads <= 0 || args.q_heads % args.kv_heads != 0) return false;
  if (args.q_heads / args.kv_heads > kUnitRows) return false;
  if (args.head_dim != 64 && args.head_dim != 128) return false;
  if (call.kv_block != 64 && call.kv_block != 128) return false;
  if (args.split_kv_size <= 0 || args.split_kv_size % call.kv_block != 0) return false;
  if (call.schedule.prefill_rows != 64 && call.schedule.prefill_rows != 128) return false;
  const KvPool& pool = call.pool;
  if (pool.kv_heads != args.kv_heads || pool.head_dim != args.head_dim) return false;
  if (args.layer < 0 || args.layer >= pool.layers) return false;
  const AttentionLimits& limits = call.limits;
  return args.shape.rows <= limits.rows && args.shape.sequences <= limits.sequences &&
         args.shape.blocks_max * kPageTokens <= limits.splits_max * args.split_kv_size &&
         limits.q_heads == args.q_heads && limits.kv_heads == args.kv_heads &&
         limits.head_dim == args.head_dim;
}

inline constexpr int kPortablePrefillRows = 64;

// Tokens of a prefill tile: as many as give so many packed rows.
inline int TileTokens(const AttentionCall& call) {
  const int rows = call.schedule.path == KernelPath::kPortable ? kPortablePrefillRows
                                                               : call.schedule.prefill_rows;
  return rows / (call.args.q_heads / call.args.kv_heads);
}

// Decode CTAs that a multiprocessor holds at once; shared memory sets it.
inline constexpr int kDecodeCtas = 2;

inline dim3 DecodeGrid(const AttentionCall& call) {
  return dim3(static_cast<unsigned>(call.schedule.multiprocessors * kDecodeCtas));
}

inline dim3 PrefillGrid(const AttentionCall& call) {
  const StepShape& shape = call.args.shape;
  return dim3(static_cast<unsigned>(TilesMax(shape.rows, shape.sequences, TileTokens(call))),
              static_cast<unsigned>(call.args.kv_heads));
}

// What a step needs of Kernels::Decode<kHeadDim, kBlock>(call, stream) and Prefill.
template <typename Kernels, int kHeadDim, int kBlock>
cudaError_t LaunchOfShape(const AttentionCall& call, cudaStream_t stream) {
  if (const cudaError_t error = Kernels::template Decode<kHeadDim, kBlock>(call, stream);
      error != cudaSuccess) {
    return error;
  }
  // A step with as many sequences as rows has no sequence with many rows.
  const bool decode_only = call.args.shape.rows <= call.args.shape.sequences;
  if (decode_only && call.schedule.split_decode) return cudaSuccess;
  return Kernels::template Prefill<kHeadDim, kBlock>(call, stream);
}

template <typename Kernels>
cudaError_t LaunchAttention(const AttentionCall& call, cudaStream_t stream) {
  if (call.args.head_dim == 64) {
    return call.kv_block == 64 ? LaunchOfShape<Kernels, 64, 64>(call, stream)
                               : LaunchOfShape<Kernels, 64, 128>(call, stream);
  }
  return call.kv_block == 64 ? LaunchOfShape<Kernels, 128, 64>(call, stream)
                             : LaunchOfShape<Kernels, 128, 128>(call, stream);
}

// Attention of each path, for calls that are supported.
cudaError_t AttentionOnSm90(const AttentionCall& call, cudaStream_t stream);
cudaError_t AttentionPortable(const AttentionCall& call, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
