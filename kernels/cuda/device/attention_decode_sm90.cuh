#pragma once

#include "kernels/cuda/device/attention_rows.cuh"

// Attention of sequences with few rows: a CTA takes one split of one sequence under one KV head,
// then the next, kv-head-wise neighbours side by side.
//
// Four warps compute and one copies keys and values, 64 tokens at a time, through one ring that
// runs on over the ends of units. For the scores each warp takes 16 of 64 keys, for the values a
// quarter of the dims; maxima and probabilities cross through shared memory. The sums of a split
// go to the workspace, and whoever finishes a sequence's last split merges all of them in
// ascending order. Same order per row as prefill: placement-invariant.
namespace lockstep::kernels::cuda {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * 32;  // That compute; 32 more copy.

template <int kHeadDim, int kBlock>
struct DecodeShared {
  static constexpr int kStages = 6;
  static constexpr int kTileBytes = kPageTokens * kHeadDim * 2;
  static constexpr int kProbabilityPitch = kBlock * 2 + 16;  // Bytes; rows fall on other banks.

  alignas(1024) uint8_t tiles[kStages][kTileBytes];
  alignas(16) uint8_t probabilities[kUnitRows * kProbabilityPitch];
  float block_max[kDecodeWarps][kUnitRows];
  int merges;  // Whether this CTA finished the sequence's last split.
  Barrier full[kStages];
  Barrier empty[kStages];
};

// A unit under a KV head, as both sides of the CTA see it.
struct DecodeWork {
  AttentionUnit unit;
  int kv_head;
  int row_begin;
  int row_count;
  int begin;  // First key.
  int end;    // One beyond the last key.
};

__device__ __forceinline__ DecodeWork DecodeWorkOf(const AttentionParameters& p, int index) {
  DecodeWork work;
  work.unit = p.workspace.units[index / p.pool.kv_heads];
  work.kv_head = index % p.pool.kv_heads;
  work.row_begin = p.query_start[work.unit.sequence];
  const int row_end = p.query_start[work.unit.sequence + 1];
  work.row_count = row_end - work.row_begin;
  work.begin = work.unit.split * p.split_kv_size;
  work.end = min(work.begin + p.split_kv_size, p.positions[row_end - 1] + 1);
  return work;
}

// Copies every unit of this CTA in the order in which they are computed: a block's keys, then its
// values. For one thread.
template <int kHeadDim, int kBlock, typename Shared>
__device__ void CopyDecodeTiles(const AttentionParameters& p, Shared& shared) {
  const int count = p.workspace.list->unit_count * p.pool.kv_heads;
  RingPosition<Shared::kStages> at;
  for (int index = static_cast<int>(blockIdx.x); index < count;
       index += static_cast<int>(gridDim.x)) {
    const DecodeWork work = DecodeWorkOf(p, index);
    const int32_t* pages = p.block_table + static_cast<size_t>(work.unit.sequence) * p.blocks_max;
    for (int block = work.begin; block < work.end; block += kBlock) {
      const int block_end = min(block + kBlock, work.end);
      for (int side = 0; side < 2; ++side) {
        for (int begin = block; begin < block_end; begin += kPageTokens) {
          Wait(&shared.empty[at.stage], at.parity ^ 1);
          LoadTile<kHeadDim, kPageTokens>(p, pages, work.kv_head, static_cast<KvSide>(side), begin,
                                          work.end, shared.tiles[at.stage], &shared.full[at.stage]);
          at.Advance();
        }
      }
    }
  }
}

// Orders what the computing warps wrote to shared memory before what they read after it.
__device__ __forceinline__ void SyncDecodeWarps() {
  asm volatile("bar.sync 1, %0;" ::"n"(kDecodeThreads) : "memory");
}

template <int kHeadDim, int kBlock>
class DecodeRows {
 public:
  using Shared = DecodeShared<kHeadDim, kBlock>;
  static constexpr int kTiles = kBlock / kPageTokens;           // Of a block.
  static constexpr int kWarpDims = kHeadDim / kDecodeWarps;     // Whose values a warp sums.
  static constexpr int kWarpKeys = kPageTokens / kDecodeWarps;  // Whose scores a warp computes.

  __device__ __forceinline__ DecodeRows(const AttentionParameters& p, Shared& shared)
      : p_(p),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run() {
    const int count = p_.workspace.list->unit_count * p_.pool.kv_heads;
    for (int index = static_cast<int>(blockIdx.x); index < count;
         index += static_cast<int>(gridDim.x)) {
      const DecodeWork work = DecodeWorkOf(p_, index);
      ComputeSplit(work);
      if (work.unit.splits == 1) {
        StoreResult();
      } else {
        StorePartial(work);
        if (ArrivesLast(work)) MergeSplits(work);
      }
    }
  }

 private:
  __device__ __forceinline__ void ComputeSplit(const DecodeWork& work) {
    rows_ = RowsOfLane(p_, work.kv_head, work.row_begin, work.row_count, lane_ / 4);
    uint32_t q[kHeadDim / 16][4];
    LoadQueries<kHeadDim>(p_, rows_, lane_, q);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      max_[i / 2] = kMinusInfinity;
      l_[i] = 0;
#pragma unroll
      for (int n = 0; n < kWarpDims / 8; ++n) o_[n][i] = 0;
    }
    for (int begin = work.begin; begin < work.end; begin += kBlock) {
      const int tiles = min(kTiles, (work.end - begin + kPageTokens - 1) / kPageTokens);
      float s[kTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Scores(tile < tiles, begin + tile * kPageTokens, q, s[tile]);
      }
      Softmax(s);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile < tiles) AddValues(tile);
      }
    }
  }

  // Scores of this warp's keys in the next tile of the ring; masked ones are minus infinity.
  __device__ __forceinline__ void Scores(bool exists, int begin,
                                         const uint32_t (&q)[kHeadDim / 16][4], float (&s)[2][4]) {
    if (!exists) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][i] = s[1][i] = kMinusInfinity;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] = s[1][i] = 0;
    Wait(&shared_.full[at_.stage], at_.parity);
    const uint32_t keys = SharedAddress(shared_.tiles[at_.stage]);
    const int key = warp_ * kWarpKeys + lane_ / 16 * 8 + lane_ % 8;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const int chunk = (k % 4 * 2 + lane_ / 8 % 2) ^ (key % 8);
      uint32_t b[4];
      LoadMatrices(b, keys + (k / 4 * kPageTokens + key) * 128 + chunk * 16);
      MmaM16N8K16(s[0], q[k], b[0], b[1]);
      MmaM16N8K16(s[1], q[k], b[2], b[3]);
    }
    Release();
    const int first = begin + warp_ * kWarpKeys + lane_ % 4 * 2;
    if (first + kWarpKeys <= min(rows_.position[0], rows_.position[1])) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (first + 8 * n + i % 2 > rows_.position[i / 2]) s[n][i] = kMinusInfinity;
      }
    }
  }

  // Moves the maxima over all warps' keys, leaves probabilities in shared memory and rescales the
  // sums.
  __device__ __forceinline__ void Softmax(const float (&s)[kTiles][2][4]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float max = kMinusInfinity;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          max = fmaxf(max, fmaxf(s[tile][n][2 * row], s[tile][n][2 * row + 1]));
        }
      }
      max = MaxOfQuad(max);
      if (lane_ % 4 == 0) shared_.block_max[warp_][lane_ / 4 + 8 * row] = max;
    }
    SyncDecodeWarps();  // All warps' maxima are there, and nobody reads the last probabilities.
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int packed = lane_ / 4 + 8 * row;
      float max = max_[row];
#pragma unroll
      for (int warp = 0; warp < kDecodeWarps; ++warp) {
        max = fmaxf(max, shared_.block_max[warp][packed]);
      }
      const float factor = RescaleFactor(max_[row], max, p_.scale);
      max_[row] = max;
      const float scaled_max = ScaledMax(max, p_.scale);
      uint8_t* to = shared_.probabilities + packed * Shared::kProbabilityPitch +
                    (warp_ * kWarpKeys + lane_ % 4 * 2) * 2;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          *reinterpret_cast<uint32_t*>(to + (tile * kPageTokens + 8 * n) * 2) =
              PackBf16(Probability(s[tile][n][2 * row], p_.scale, scaled_max),
                       Probability(s[tile][n][2 * row + 1], p_.scale, scaled_max));
        }
      }
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        l_[i] = __fmul_rn(l_[i], factor);
#pragma unroll
        for (int n = 0; n < kWarpDims / 8; ++n) o_[n][i] = __fmul_rn(o_[n][i], factor);
      }
    }
    SyncDecodeWarps();  // All warps' probabilities are there, and nobody reads the maxima.
  }

  // Adds the next tile of the ring, the block's `tile`, to this warp's dims.
  __device__ __forceinline__ void AddValues(int tile) {
    Wait(&shared_.full[at_.stage], at_.parity);
    const uint32_t values = SharedAddress(shared_.tiles[at_.stage]);
    const uint32_t probabilities = SharedAddress(shared_.probabilities) +
                                   lane_ % 16 * Shared::kProbabilityPitch +
                                   (tile * kPageTokens + lane_ / 16 * 8) * 2;
    const int key = lane_ % 16;
#pragma unroll
    for (int k = 0; k < kPageTokens / 16; ++k) {
      uint32_t a[4];
      LoadMatrices(a, probabilities + k * 32);
#pragma unroll
      for (int n = 0; n < kWarpDims / 16; ++n) {
        const int dim = warp_ * kWarpDims + 16 * n;
        const int chunk = (dim % kSlabDims / 8 + lane_ / 16) ^ (key % 8);
        uint32_t b[4];
        LoadMatricesTransposed(
            b, values + (dim / kSlabDims * kPageTokens + 16 * k + key) * 128 + chunk * 16);
        MmaM16N8K16(o_[2 * n], a, b[0], b[1]);
        MmaM16N8K16(o_[2 * n + 1], a, b[2], b[3]);
      }
      MmaM16N8K16(l_, a, kOnesBf16, kOnesBf16);
    }
    Release();
  }

  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (lane_ == 0) Arrive(&shared_.empty[at_.stage]);
    at_.Advance();
  }

  // First dim of fragment n of this warp in this lane.
  __device__ __forceinline__ int Dim(int n) const {
    return warp_ * kWarpDims + 8 * n + lane_ % 4 * 2;
  }

  __device__ __forceinline__ void StoreResult() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (rows_.row[row] < 0) continue;
#pragma unroll
      for (int n = 0; n < kWarpDims / 8; ++n) {
        StoreOutputs<kHeadDim>(p_, rows_.row[row], rows_.head[row], Dim(n),
                               Normalised(o_[n][2 * row], l_[2 * row]),
                               Normalised(o_[n][2 * row + 1], l_[2 * row]));
      }
    }
  }

  // Packed rows before those of one split of the unit's sequence in the workspace.
  __device__ __forceinline__ size_t PartialRow(const DecodeWork& work, int split) const {
    const int packed = work.row_count * p_.group;
    return static_cast<size_t>(work.unit.partial_row + split * packed) * p_.pool.kv_heads +
           work.kv_head * packed;
  }

  __device__ __forceinline__ void StorePartial(const DecodeWork& work) {
    const size_t first = PartialRow(work, work.unit.split);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (rows_.row[row] < 0) continue;
      const size_t at = first + lane_ / 4 + 8 * row;
#pragma unroll
      for (int n = 0; n < kWarpDims / 8; ++n) {
        *reinterpret_cast<float2*>(p_.workspace.partial_sums + at * kHeadDim + Dim(n)) =
            make_float2(o_[n][2 * row], o_[n][2 * row + 1]);
      }
      if (warp_ == 0 && lane_ % 4 == 0) {
        *reinterpret_cast<float2*>(p_.workspace.partial_states + at * 2) =
            make_float2(max_[row], l_[2 * row]);
      }
    }
  }

  // Who comes last merges everything, in the same order as anybody else would.
  __device__ __forceinline__ bool ArrivesLast(const DecodeWork& work) {
    __threadfence();    // This thread's sums are visible before its CTA counts as arrived.
    SyncDecodeWarps();  // All threads have stored theirs.
    if (threadIdx.x == 0) {
      uint32_t* arrived =
          p_.workspace.arrived + work.unit.sequence * p_.pool.kv_heads + work.kv_head;
      // Wraps to 0 at the last arrival, for the next layer.
      const uint32_t before = atomicInc(arrived, static_cast<uint32_t>(work.unit.splits - 1));
      shared_.merges = before == static_cast<uint32_t>(work.unit.splits - 1);
    }
    SyncDecodeWarps();  // The answer is there.
    const bool last = shared_.merges != 0;
    if (last) __threadfence();  // The others' sums are read after their arrivals.
    return last;
  }

  __device__ __forceinline__ void MergeSplits(const DecodeWork& work) {
    constexpr int kChunks = kHeadDim / 4;
    for (int item = static_cast<int>(threadIdx.x); item < work.row_count * p_.group * kChunks;
         item += kDecodeThreads) {
      const int packed = item / kChunks;
      const int dim = item % kChunks * 4;
      const int row = work.row_begin + packed / p_.group;
      const int splits = p_.positions[row] / p_.split_kv_size + 1;  // That this row sees.
      float4 sums;
      float2 state;  // Raw maximum, row sum.
#pragma unroll 4
      for (int split = 0; split < splits; ++split) {
        const size_t at = PartialRow(work, split) + packed;
        const float4 next_sums = __ldcg(
            reinterpret_cast<const float4*>(p_.workspace.partial_sums + at * kHeadDim + dim));
        const float2 next =
            __ldcg(reinterpret_cast<const float2*>(p_.workspace.partial_states + at * 2));
        if (split == 0) {
          sums = next_sums;
          state = next;
          continue;
        }
        const MergeFactors factors = MergeFactorsOf(state.x, next.x, p_.scale);
        state = make_float2(factors.max, Merged(factors, state.y, next.y));
        sums.x = Merged(factors, sums.x, next_sums.x);
        sums.y = Merged(factors, sums.y, next_sums.y);
        sums.z = Merged(factors, sums.z, next_sums.z);
        sums.w = Merged(factors, sums.w, next_sums.w);
      }
      const int head = work.kv_head * p_.group + packed % p_.group;
      StoreOutputs<kHeadDim>(p_, row, head, dim, Normalised(sums.x, state.y),
                             Normalised(sums.y, state.y));
      StoreOutputs<kHeadDim>(p_, row, head, dim + 2, Normalised(sums.z, state.y),
                             Normalised(sums.w, state.y));
    }
  }

  const AttentionParameters& p_;
  Shared& shared_;
  int warp_;
  int lane_;
  RingPosition<Shared::kStages> at_;
  PackedRows rows_;
  float max_[2];
  float l_[4];
  float o_[kWarpDims / 8][4];
};

// Rows of padding become zero: nothing that follows may depend on what was there.
template <int kHeadDim>
__device__ void ZeroPaddingRows(const AttentionParameters& p) {
  const int width = p.q_heads * kHeadDim;
  for (int row = static_cast<int>(blockIdx.x); row < p.rows; row += static_cast<int>(gridDim.x)) {
    if (p.row_sequence[row] >= 0) continue;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += kDecodeThreads) {
      p.y[static_cast<size_t>(row) * width + i] = 0;
    }
  }
}

template <int kHeadDim, int kBlock>
__global__ void __launch_bounds__(kDecodeThreads + 32, 2)
    AttentionDecodeKernel(const __grid_constant__ AttentionParameters p) {
  using Shared = DecodeShared<kHeadDim, kBlock>;
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shared::kStages; ++stage) {
      InitBarrier(&shared.full[stage], 1);
      InitBarrier(&shared.empty[stage], kDecodeWarps);
    }
    FenceBarrierInit();
  }
  __syncthreads();  // Barriers are there before anybody uses them.
  if (threadIdx.x < kDecodeThreads) {
    DecodeRows<kHeadDim, kBlock>(p, shared).Run();
    ZeroPaddingRows<kHeadDim>(p);
  } else if (threadIdx.x == kDecodeThreads) {
    CopyDecodeTiles<kHeadDim, kBlock>(p, shared);
  }
}

}  // namespace lockstep::kernels::cuda
