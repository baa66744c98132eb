#pragma once

#include "kernels/api/kv_cache.h"
#include "kernels/api/step.h"

namespace lockstep::kernels {

// q and k of each row: per-head RMSNorm (skipped where the weight is null), rotary embedding at the
// row's position; k and v then go to the sequence's KV block for that position. q is updated in
// place. qkv: [rows, (q_heads + 2 * kv_heads) * head_dim], activation type: q, then k, then v.
struct QkvPrepareArgs {
  StepShape shape;
  StepInputs inputs;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;  // [head_dim] or null
  float epsilon = 0;
  const float* rope_table = nullptr;  // [positions, head_dim]: cos of half the dims, then sin.
  void* qkv = nullptr;
  KvCache* kv = nullptr;
  int layer = 0;
};

// Causal attention of each row over positions 0..its own, read from the KV pool, in blocks of
// kv_block inside splits of split_kv_size counted from position 0, splits merged in ascending
// order. One op for prefill, chunks, cached prefixes, decode and scoring: same row, same bits.
struct AttentionArgs {
  StepShape shape;
  StepInputs inputs;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int split_kv_size = 0;      // A multiple of the pool's block_tokens.
  const void* qkv = nullptr;  // As left by QkvPrepare.
  const KvCache* kv = nullptr;
  int layer = 0;
  void* y = nullptr;  // [rows, q_heads * head_dim]
};

}  // namespace lockstep::kernels
