#pragma once

#include <cstdint>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_workspace.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"
#include "kernels/cuda/kv_layout.h"

namespace lockstep::kernels::cuda {

// What all attention kernels take, by value.
struct AttentionParameters {
  const uint16_t* qkv;  // bf16 [rows, (q_heads + 2 kv_heads) * head_dim]
  uint16_t* y;          // bf16 [rows, q_heads * head_dim]
  const int32_t* positions;
  const int32_t* row_sequence;
  const int32_t* query_start;
  const int32_t* block_table;
  KvPool pool;
  AttentionWorkspace workspace;
  int rows;
  int sequences;
  int blocks_max;
  int q_heads;
  int group;  // Query heads of a KV head.
  int layer;
  int split_kv_size;
  int tile_tokens;  // Of a prefill tile.
  float scale;      // Times a raw score: the exponent of 2.
};

inline AttentionParameters ParametersOf(const AttentionCall& call) {
  const AttentionArgs& args = call.args;
  return {.qkv = static_cast<const uint16_t*>(args.qkv),
          .y = static_cast<uint16_t*>(args.y),
          .positions = args.inputs.positions,
          .row_sequence = args.inputs.row_sequence,
          .query_start = args.inputs.query_start,
          .block_table = args.inputs.block_table,
          .pool = call.pool,
          .workspace = call.workspace,
          .rows = args.shape.rows,
          .sequences = args.shape.sequences,
          .blocks_max = args.shape.blocks_max,
          .q_heads = args.q_heads,
          .group = args.q_heads / args.kv_heads,
          .layer = args.layer,
          .split_kv_size = args.split_kv_size,
          .tile_tokens = TileTokens(call),
          .scale = AttentionScale(args.head_dim)};
}

}  // namespace lockstep::kernels::cuda
