#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/api/buffer.h"
#include "kernels/cuda/ops.h"
#include "tests/gpu/gpu_test.h"

namespace lockstep::testing {

struct RigOptions {
  kernels::cuda::KernelPath path = PathOfDevice();
  int q_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  int kv_block = kernels::cuda::kKvBlock;
  int split_kv_size = kernels::cuda::kSplitKvSize;
  int positions = 3072;  // Longest sequence.
  int sequences = 4;     // Most sequences at once.
  int rows = 4096;       // Most rows at once.
  uint32_t shuffle = 0;  // Which physical page holds which logical one.
  // When not 0, keys repeat with this period and values do with turned signs: after an even number
  // of periods sums cancel, and what is left is the rounding of every step of the order.
  int cancel_period = 0;
};

// Rows for positions [begin, end) of a sequence in one step. Queries, keys and values are a
// function of (stream, position), so that two chunks of one stream are the same sequence.
struct Chunk {
  int slot = 0;         // Row of the block table.
  uint32_t stream = 0;  // Which sequence.
  int begin = 0;
  int end = 0;
  float fill = 0;    // When not 0, every value of the sequence: a hostile neighbour.
  int nan_from = 0;  // When not 0, the first position of which all is NaN, as of those behind it.
};

// The schedule's path is the rig's.
struct RigRun {
  bool reference = false;
  kernels::cuda::AttentionSchedule schedule;
};

// Runs attention over a poisoned KV pool, step by step: before each step exactly the keys and
// values of [0, end) of each chunk's sequence are there, and everything else, outputs and
// workspace too, is NaN.
class AttentionRig {
 public:
  explicit AttentionRig(const RigOptions& options);

  // One step; y of all rows, chunk by chunk: [rows, q_heads * head_dim].
  std::vector<float> Step(const std::vector<Chunk>& chunks, const RigRun& run = {},
                          int padding_rows = 0);

  // The parts of Step: what a captured graph does not hold, and what it does.
  void Load(const std::vector<Chunk>& chunks, int padding_rows);
  void Enqueue(const RigRun& run, cudaStream_t stream);
  std::vector<float> Read();

  // Operands as the kernels see them, widened. A head's index among all query or KV heads.
  std::vector<float> Query(const Chunk& chunk, int position, int head) const;
  std::vector<float> Key(const Chunk& chunk, int position, int head) const;
  std::vector<float> Value(const Chunk& chunk, int position, int head) const;

  size_t row_width() const { return static_cast<size_t>(options_.q_heads * options_.head_dim); }
  const RigOptions& options() const { return options_; }

 private:
  struct Sequence {
    std::vector<uint16_t> queries;  // [positions, q_heads, head_dim]
    std::vector<uint16_t> keys;     // [positions, kv_heads, head_dim]
    std::vector<uint16_t> values;
  };

  // By which sequences are told apart: NaN equals nothing, so its bits stand for it.
  using SequenceKey = std::tuple<uint32_t, uint32_t, int>;  // Stream, bits of fill, nan_from.
  static SequenceKey KeyOf(const Chunk& chunk);

  const Sequence& SequenceOf(const Chunk& chunk) const;
  void Cancel(Sequence& sequence) const;
  int Page(int slot, int index) const;
  // Of one page: [kv head]{keys, values}.
  size_t PageElements() const {
    return static_cast<size_t>(2 * options_.kv_heads) *
           kernels::cuda::KvTileElements(options_.head_dim);
  }
  void FillPage(const Chunk& chunk, int index, uint16_t* page) const;
  void LoadKv(const std::vector<Chunk>& chunks);

  RigOptions options_;
  int pages_per_slot_;
  kernels::cuda::AttentionLimits limits_;
  kernels::StepShape shape_;
  mutable std::map<SequenceKey, Sequence> sequences_;
  std::map<int, std::pair<SequenceKey, int>> loaded_;  // By slot: whose keys, and how many.
  kernels::Buffer pool_;
  kernels::Buffer qkv_;
  kernels::Buffer y_;
  kernels::Buffer token_positions_;
  kernels::Buffer row_sequence_;
  kernels::Buffer query_start_;
  kernels::Buffer block_table_;
  kernels::Buffer workspace_;
};

}  // namespace lockstep::testing
