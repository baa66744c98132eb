#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/api/buffer.h"
#include "kernels/cuda/ops.h"

namespace lockstep::bench {

// One attention layer of Qwen3-8B over random data: a pool larger than any cache, whose pages are
// handed out anew to each launch, so that no launch finds its keys where the last one left them.
class AttentionData {
 public:
  static constexpr int kQueryHeads = 32;
  static constexpr int kKvHeads = 8;
  static constexpr int kHeadDim = 128;

  AttentionData(int tokens_max, int rows_max, int sequences_max);

  // `sequences` of `context` tokens each, of which the last `rows` are queries.
  void Load(int sequences, int context, int rows);

  struct Variant {
    int kv_block = 64;
    int split_kv_size = 512;
    kernels::cuda::AttentionSchedule schedule;
  };
  // Plans for what was loaded.
  void Plan(const Variant& variant, cudaStream_t stream);
  // `turn` chooses the pages.
  void Enqueue(const Variant& variant, int turn, cudaStream_t stream);
  // Fills the outputs with NaN.
  void Poison();
  std::vector<uint16_t> Outputs() const;

 private:
  kernels::cuda::AttentionCall Call(const Variant& variant, int turn) const;

  int pages_;
  int rows_max_;
  int sequences_max_;
  int sequences_ = 0;
  int context_ = 0;
  int rows_ = 0;  // Of all sequences.
  kernels::Buffer pool_;
  kernels::Buffer qkv_;
  kernels::Buffer y_;
  kernels::Buffer positions_;
  kernels::Buffer row_sequence_;
  kernels::Buffer query_start_;
  kernels::Buffer page_order_;  // A permutation of all pages, twice.
  kernels::Buffer workspace_;
};

}  // namespace lockstep::bench
