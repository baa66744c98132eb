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

// Tokens of a prefill tile: as many as give `prefill_rows` packed rows.
inline int TileTokens(const AttentionCall& call) {
  return call.schedule.prefill_rows / (call.args.q_heads / call.args.kv_heads);
}

}  // namespace lockstep::kernels::cuda
