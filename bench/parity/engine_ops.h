#pragma once

#include <cstdint>

// The CUDA backend's ops as a C library: what run.py calls through ctypes to compare them one by
// one with the trainer's. Pointers are device memory unless a comment says host. Every call waits
// for its result, and returns a cudaError_t. One thread at a time.
extern "C" {

// y bf16 [rows, outputs], or fp32 when `output_f32`, by the reference kernel that certification
// compares with, and the kernel that combines segments. x bf16 [rows, inputs], weight bf16
// [outputs, inputs], bias bf16 [outputs] or null.
struct ParityLinearCall {
  const void* x;
  const void* weight;
  const void* bias;
  void* y;
  int32_t rows;
  int32_t outputs;
  int32_t inputs;
  int32_t segments;
  int32_t output_f32;
};
int ParityLinear(const ParityLinearCall* call);

// x, y: bf16 [rows, width]; weight: fp32 [width].
struct ParityRmsNormCall {
  const void* x;
  const float* weight;
  void* y;
  int32_t rows;
  int32_t width;
  float epsilon;
};
int ParityRmsNorm(const ParityRmsNormCall* call);

// gate_up: bf16 [rows, 2 * width]; y: bf16 [rows, width].
struct ParitySwiGluCall {
  const void* gate_up;
  void* y;
  int32_t rows;
  int32_t width;
};
int ParitySwiGlu(const ParitySwiGluCall* call);

// A sequence from position 0: norm and rotation, then attention. qkv: bf16 [rows, (q_heads + 2 *
// kv_heads) * head_dim], of which q becomes what attention reads; rope_table: fp32 [rows or more,
// head_dim], cosines of half the dims, then sines; y: bf16 [rows, q_heads * head_dim].
struct ParityAttentionCall {
  void* qkv;
  const float* q_norm;
  const float* k_norm;
  const float* rope_table;
  void* y;
  int32_t rows;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t split_kv_size;
  float epsilon;
};
int ParityAttention(const ParityAttentionCall* call);

// logits: fp32 [rows, vocabulary]; ids: host, int32 [rows]; raw, scaled, entropy: fp32 [rows].
struct ParityLogprobsCall {
  const float* logits;
  const int32_t* ids;
  float* raw;
  float* scaled;
  float* entropy;
  int32_t rows;
  int32_t vocabulary;
  float temperature;
};
int ParityLogprobs(const ParityLogprobsCall* call);

// table: host, fp32 [positions, head_dim]: cosines of half the dims, then sines.
void ParityRopeTable(double theta, int32_t head_dim, int32_t positions, float* table);
}
