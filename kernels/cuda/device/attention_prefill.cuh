#pragma once

#include "kernels/cuda/device/attention_rows.cuh"

// Attention of a tile of consecutive rows of one sequence under one KV head.
//
// A CTA is kWarpgroups warpgroups that compute, 64 packed rows each, and warps that copy keys and
// values ahead of them through two rings of stages. Where products are asynchronous, the scores of
// block b are multiplied with the values of block b - 1, and their softmax is computed meanwhile.
// Order per row: blocks ascending inside a split, splits ascending; sums of finished splits wait in
// shared memory, each thread's where only it looks. Placement-invariant. `Products` and `Copies`
// say by which instructions (attention_products_….cuh, attention_copies_….cuh).
namespace lockstep::kernels::cuda {

template <int kHeadDim, int kBlock, int kWarpgroups, int kStagesOfRing>
struct PrefillShared {
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kStages = kStagesOfRing;
  static constexpr int kTileBytes = kBlock * kHeadDim * 2;

  alignas(1024) uint8_t keys[kStages][kTileBytes];
  uint8_t values[kStages][kTileBytes];
  float4 merged[kHeadDim / 8][kThreads];
  alignas(128) uint32_t ones[64];
  Barrier keys_full[kStages];
  Barrier keys_empty[kStages];
  Barrier values_full[kStages];
  Barrier values_empty[kStages];
};

// Copies the keys or values of block [begin, begin + kBlock) to a stage; tokens from the tile's end
// on become zero. For the threads that copy.
template <int kHeadDim, int kBlock, typename Copies>
__device__ __forceinline__ void CopyPrefillBlock(const AttentionParameters& p,
                                                 const AttentionTile& tile, int kv_head,
                                                 KvSide side, int begin, uint8_t* stage,
                                                 Barrier* barrier, int thread, Copies& copies) {
  const int32_t* pages = p.block_table + static_cast<size_t>(tile.sequence) * p.blocks_max;
  if (thread == 0) Copies::Expect(barrier, kBlock * kHeadDim * 2);
#pragma unroll
  for (int part = 0; part < kBlock / kPageTokens; ++part) {
    const int first = begin + part * kPageTokens;
    const int valid = min(max(tile.kv_length - first, 0), kPageTokens);
    const int page = valid > 0 ? pages[first / kPageTokens] : 0;
    Copies::template CopyPage<kHeadDim, kBlock>(p, page, kv_head, side, part, valid, stage, barrier,
                                                thread);
  }
  copies.Copied(barrier);
}

// Copies the tile's keys and values, block by block. For the threads that copy.
template <int kHeadDim, int kBlock, typename Copies, typename Shared>
__device__ void CopyPrefillTile(const AttentionParameters& p, const AttentionTile& tile,
                                int kv_head, Shared& shared, int thread) {
  RingPosition<Shared::kStages> at;
  Copies copies;
  for (int begin = 0; begin < tile.kv_length; begin += kBlock) {
    Wait(&shared.keys_empty[at.stage], at.parity ^ 1);
    CopyPrefillBlock<kHeadDim, kBlock, Copies>(p, tile, kv_head, KvSide::kKeys, begin,
                                               shared.keys[at.stage], &shared.keys_full[at.stage],
                                               thread, copies);
    Wait(&shared.values_empty[at.stage], at.parity ^ 1);
    CopyPrefillBlock<kHeadDim, kBlock, Copies>(p, tile, kv_head, KvSide::kValues, begin,
                                               shared.values[at.stage],
                                               &shared.values_full[at.stage], thread, copies);
    at.Advance();
  }
  copies.Finish();
}

// The rows of one lane: two rows of the fragments, in one split and over the splits before it.
template <int kHeadDim, int kBlock, int kThreads>
class PrefillRows {
 public:
  __device__ __forceinline__ PrefillRows(const PackedRows& rows, float scale, float4* merged)
      : rows_(rows), scale_(scale), merged_sums_(merged) {}

  // Masks the scores of the block that begins at key `begin`, moves the maxima and leaves
  // probabilities in `s`. `factor` becomes what the sums so far are to be multiplied with.
  __device__ __forceinline__ void Softmax(float (&s)[kBlock / 8][4], int begin, bool split_begins,
                                          float (&factor)[2]) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    if (begin + kBlock - 1 > min(rows_.position[0], rows_.position[1])) {
#pragma unroll
      for (int n = 0; n < kBlock / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (begin + 8 * n + column + i % 2 > rows_.position[i / 2]) s[n][i] = kMinusInfinity;
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float block_max = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < kBlock / 8; ++n) {
        block_max = fmaxf(block_max, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
      }
      const float old_max = split_begins ? kMinusInfinity : max_[row];
      next_max_[row] = fmaxf(old_max, MaxOfQuad(block_max));
      factor[row] = RescaleFactor(old_max, next_max_[row], scale_);
      const float scaled_max = ScaledMax(next_max_[row], scale_);
#pragma unroll
      for (int n = 0; n < kBlock / 8; ++n) {
        s[n][2 * row] = Probability(s[n][2 * row], scale_, scaled_max);
        s[n][2 * row + 1] = Probability(s[n][2 * row + 1], scale_, scaled_max);
      }
    }
  }

  // The maxima that Softmax found are those of the sums from now on.
  __device__ __forceinline__ void AdvanceMax() {
    max_[0] = next_max_[0];
    max_[1] = next_max_[1];
  }

  __device__ __forceinline__ void Rescale(const float (&factor)[2], float (&o)[kHeadDim / 8][4],
                                          float (&l)[1][4]) {
    if (!__any_sync(0xFFFFFFFF, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      l[0][i] = __fmul_rn(l[0][i], factor[i / 2]);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) o[n][i] = __fmul_rn(o[n][i], factor[i / 2]);
    }
  }

  // The split that began at key `begin` is finished: its sums join those of the splits before.
  __device__ __forceinline__ void MergeSplit(int begin, const float (&o)[kHeadDim / 8][4],
                                             const float (&l)[1][4]) {
    if (begin == 0) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        merged_max_[row] = max_[row];
        merged_row_sum_[row] = l[0][2 * row];
      }
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        merged_sums_[n * kThreads] = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
      }
      return;
    }
    MergeFactors factors[2];
    bool sees[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sees[row] = rows_.position[row] >= begin;
      factors[row] = MergeFactorsOf(merged_max_[row], max_[row], scale_);
      if (!sees[row]) continue;
      merged_max_[row] = factors[row].max;
      merged_row_sum_[row] = Merged(factors[row], merged_row_sum_[row], l[0][2 * row]);
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      float4 sums = merged_sums_[n * kThreads];
      if (sees[0]) {
        sums.x = Merged(factors[0], sums.x, o[n][0]);
        sums.y = Merged(factors[0], sums.y, o[n][1]);
      }
      if (sees[1]) {
        sums.z = Merged(factors[1], sums.z, o[n][2]);
        sums.w = Merged(factors[1], sums.w, o[n][3]);
      }
      merged_sums_[n * kThreads] = sums;
    }
  }

  // `last_begin` is the first key of the tile's last split, whose sums are in o and l.
  __device__ __forceinline__ void Store(const AttentionParameters& p, int last_begin,
                                        float (&o)[kHeadDim / 8][4], float (&l)[1][4]) {
    float row_sum[2] = {l[0][0], l[0][2]};
    if (last_begin > 0) {
      MergeSplit(last_begin, o, l);
      row_sum[0] = merged_row_sum_[0];
      row_sum[1] = merged_row_sum_[1];
    }
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      float4 sums = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
      if (last_begin > 0) sums = merged_sums_[n * kThreads];
      if (rows_.row[0] >= 0) {
        StoreOutputs<kHeadDim>(p, rows_.row[0], rows_.head[0], 8 * n + column,
                               Normalised(sums.x, row_sum[0]), Normalised(sums.y, row_sum[0]));
      }
      if (rows_.row[1] >= 0) {
        StoreOutputs<kHeadDim>(p, rows_.row[1], rows_.head[1], 8 * n + column,
                               Normalised(sums.z, row_sum[1]), Normalised(sums.w, row_sum[1]));
      }
    }
  }

 private:
  PackedRows rows_;
  float scale_;
  float max_[2] = {kMinusInfinity, kMinusInfinity};  // Raw, of the sums in registers.
  float next_max_[2];
  float merged_max_[2];
  float merged_row_sum_[2];
  float4* merged_sums_;  // Of this thread: [kHeadDim / 8], kThreads apart.
};

template <int kBlock>
__device__ __forceinline__ void PackProbabilities(const float (&s)[kBlock / 8][4],
                                                  uint32_t (&p)[kBlock / 16][4]) {
#pragma unroll
  for (int k = 0; k < kBlock / 16; ++k) {
    p[k][0] = PackBf16(s[2 * k][0], s[2 * k][1]);
    p[k][1] = PackBf16(s[2 * k][2], s[2 * k][3]);
    p[k][2] = PackBf16(s[2 * k + 1][0], s[2 * k + 1][1]);
    p[k][3] = PackBf16(s[2 * k + 1][2], s[2 * k + 1][3]);
  }
}

template <int kHeadDim, int kBlock, int kWarpgroups, typename Products, typename Shared>
__device__ __forceinline__ void ComputePrefillRows(const AttentionParameters& p,
                                                   const AttentionTile& tile, int kv_head,
                                                   Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const PackedRows packed = RowsOfLane(p, kv_head, tile.row_begin, tile.row_count, tile.kv_length,
                                       thread / 32 * 16 + lane / 4);
  uint32_t q[kHeadDim / 16][4];
  LoadQueriesFromGlobal<kHeadDim>(p, packed, lane, q);
  PrefillRows<kHeadDim, kBlock, Shared::kThreads> rows(packed, p.scale, &shared.merged[0][thread]);
  const uint32_t ones = SharedAddress(shared.ones);

  float s[kBlock / 8][4];
  uint32_t probabilities[kBlock / 16][4];
  float o[kHeadDim / 8][4];
  float l[1][4];
  float factor[2];
  RingPosition<Shared::kStages> keys_at;
  RingPosition<Shared::kStages> values_at;
  const auto release = [lane](Barrier* barrier) {
    __syncwarp();  // The warp's product is done before it gives the stage back.
    if (lane < Products::kReaders) Arrive(barrier);
  };

  const auto begin_scores = [&] {
    Wait(&shared.keys_full[keys_at.stage], keys_at.parity);
    Products::BeginScores(s, q, SharedAddress(shared.keys[keys_at.stage]), lane);
  };
  const auto release_keys = [&] {
    release(&shared.keys_empty[keys_at.stage]);
    keys_at.Advance();
  };
  int split_begin = 0;  // Of the split whose sums are in o and l.
  bool accumulate = false;
  const auto begin_values = [&] {
    Wait(&shared.values_full[values_at.stage], values_at.parity);
    Products::BeginValues(o, l, probabilities, SharedAddress(shared.values[values_at.stage]), ones,
                          accumulate, lane);
  };
  const auto finish_values = [&] {
    Products::template Finish<0>(o);
    Products::template Finish<0>(l);
    release(&shared.values_empty[values_at.stage]);
    values_at.Advance();
  };

  begin_scores();
  Products::template Finish<0>(s);
  release_keys();
  rows.Softmax(s, 0, true, factor);
  rows.AdvanceMax();
  PackProbabilities<kBlock>(s, probabilities);
  for (int begin = kBlock; begin < tile.kv_length; begin += kBlock) {
    if constexpr (Products::kAsynchronous) {
      begin_scores();
      begin_values();
      Products::template Finish<1>(s);
    } else {
      // One after the other, and no more registers at a time than each needs.
      begin_values();
      finish_values();
      begin_scores();
    }
    release_keys();
    const bool split_begins = begin == split_begin + p.split_kv_size;
    rows.Softmax(s, begin, split_begins, factor);
    if constexpr (Products::kAsynchronous) finish_values();
    if (split_begins) {
      rows.MergeSplit(split_begin, o, l);
      split_begin = begin;
    } else {
      rows.Rescale(factor, o, l);
    }
    accumulate = !split_begins;
    rows.AdvanceMax();
    PackProbabilities<kBlock>(s, probabilities);
  }
  begin_values();
  Products::template Finish<0>(o);
  Products::template Finish<0>(l);
  rows.Store(p, split_begin, o, l);
}

template <int kHeadDim, int kBlock, int kWarpgroups, typename Products, typename Copies>
__global__ void __launch_bounds__(kWarpgroups * 128 + Products::kCopyThreads, 1)
    AttentionPrefillKernel(const __grid_constant__ AttentionParameters p) {
  using Shared = PrefillShared<kHeadDim, kBlock, kWarpgroups, Products::kStages>;
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int kv_head = static_cast<int>(blockIdx.y);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shared::kStages; ++stage) {
      InitBarrier(&shared.keys_full[stage], Copies::kArrivals);
      InitBarrier(&shared.values_full[stage], Copies::kArrivals);
      InitBarrier(&shared.keys_empty[stage], kWarpgroups * 4 * Products::kReaders);
      InitBarrier(&shared.values_empty[stage], kWarpgroups * 4 * Products::kReaders);
    }
    Copies::FenceBarriers();
  }
  if (threadIdx.x < 64) shared.ones[threadIdx.x] = kOnesBf16;
  Products::FenceShared();
  __syncthreads();  // Barriers and ones are there before anybody uses them.
  WaitForKernels();
  AllowNextKernel();
  // Read together: behind the last tile of the list there is memory, if no tile.
  const AttentionTile tile = p.workspace.tiles[blockIdx.x];
  if (static_cast<int>(blockIdx.x) >= p.workspace.list->tile_count) return;

  if (threadIdx.x < Shared::kThreads) {
    Products::TakeRegisters();
    ComputePrefillRows<kHeadDim, kBlock, kWarpgroups, Products>(p, tile, kv_head, shared);
  } else {
    Products::GiveUpRegisters();
    const int thread = static_cast<int>(threadIdx.x) - Shared::kThreads;
    if (thread < Copies::kThreads) {
      CopyPrefillTile<kHeadDim, kBlock, Copies>(p, tile, kv_head, shared, thread);
    }
  }
}

}  // namespace lockstep::kernels::cuda
