#pragma once

#include <memory>
#include <vector>

#include "kernels/api/kernel_set.h"

namespace lockstep::kernels {

struct RigOptions {
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int split_kv_size = 64;
  int positions = 512;   // Longest sequence.
  int sequences = 4;     // Most sequences at once.
  uint32_t shuffle = 0;  // Which physical block holds which logical one.
  bool norms = true;
};

// A part of a sequence that one step computes: rows for positions [begin, end). Tokens are a
// function of (stream, position), so that two runs of one stream are the same sequence.
struct Chunk {
  int slot = 0;         // Row of the block table.
  uint32_t stream = 0;  // Which sequence.
  int begin = 0;
  int end = 0;
  float fill = 0;  // When not 0, every value of the rows: a hostile neighbour.
};

// Runs QkvPrepare and Attention over a poisoned KV pool as a worker would, step by step.
class AttentionRig {
 public:
  AttentionRig(KernelSet& kernels, const RigOptions& options);

  // One step; returns y of all rows, chunk by chunk: [rows, q_heads * head_dim].
  std::vector<float> Step(const std::vector<Chunk>& chunks, int padding_rows = 0);
  // Poisons every block of a slot and forgets what was there.
  void Free(int slot);

  // The row of qkv before QkvPrepare: [(q_heads + 2 kv_heads) * head_dim].
  std::vector<float> Row(const Chunk& chunk, int position) const;
  // qkv of the last step, as QkvPrepare left it.
  const std::vector<float>& prepared() const { return prepared_; }
  size_t row_width() const { return static_cast<size_t>(options_.q_heads * options_.head_dim); }

 private:
  template <typename T>
  T* Put(const std::vector<T>& host);

  KernelSet& kernels_;
  RigOptions options_;
  int blocks_max_;
  std::vector<int32_t> block_table_;
  std::unique_ptr<KvCache> kv_;
  Buffer rope_;
  std::vector<Buffer> step_buffers_;
  std::vector<float> prepared_;
};

}  // namespace lockstep::kernels
