#pragma once

#include "kernels/cuda/device/attention_merge.cuh"
#include "kernels/cuda/device/attention_rows.cuh"

// Attention of sequences with few rows: a CTA takes one split of one sequence under one KV head, or
// all its splits in turn, then the next, neighbours taking neighbouring KV heads.
//
// Four warps compute. One copies, a unit ahead: queries to a slot, keys and values 64 tokens at a
// time to a ring that runs on over the ends of units. One finishes: when the sums of a split are
// in the workspace it counts the split as arrived, and if that was its sequence's last it merges
// all of them in ascending order, while the others go on. For the scores each computing warp takes
// 16 of 64 keys, for the values a quarter of the dims; maxima and probabilities cross through
// shared memory. Same order per row as prefill: placement-invariant. `Copies` says how the copying
// warp copies (attention_copies_….cuh).
namespace lockstep::kernels::cuda {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * 32;  // That compute.
inline constexpr int kDecodeCtaThreads = kDecodeThreads + 64;

template <int kHeadDim, int kBlock, typename Copies>
struct DecodeShared {
  static constexpr int kStages = Copies::kDecodeStages;
  static constexpr int kSlots = 2;
  static constexpr int kTileBytes = kPageTokens * kHeadDim * 2;
  static constexpr int kProbabilityPitch = kBlock * 2 + 16;  // Bytes; rows fall on other banks.

  alignas(1024) uint8_t tiles[kStages][kTileBytes];
  alignas(16) uint8_t probabilities[kUnitRows * kProbabilityPitch];
  DecodeSlot<kHeadDim> slots[kSlots];
  float block_max[kDecodeWarps][kUnitRows];
  Barrier full[kStages];
  Barrier empty[kStages];
};

// Takes units and copies them in the order in which they are computed: the queries, then block by
// block the keys and the values. For one warp. The next unit and its pages are looked up between
// the copies of the present one, so that no copy waits for a list or a page table.
template <int kHeadDim, int kBlock, typename Copies>
class DecodeCopies {
 public:
  using Shared = DecodeShared<kHeadDim, kBlock, Copies>;

  __device__ __forceinline__ DecodeCopies(const AttentionParameters& p, Shared& shared)
      : p_(p), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run() {
    count_ = p_.workspace.list->unit_count * p_.pool.kv_heads;
    next_index_ = static_cast<int>(blockIdx.x);
    LookUp(1);
    LookUp(2);
    while (next_index_ < count_) {
      const int kv_head = next_index_ % p_.pool.kv_heads;
      const AttentionUnit unit = next_unit_;
      PageWindow pages = next_pages_;
      Publish(unit, kv_head);
      CopyKeysAndValues(unit, kv_head, pages);
    }
    Publish(AttentionUnit{}, 0);
    copies_.Finish();
  }

 private:
  // A step towards the next unit; each waits for what the step before it asked for.
  __device__ __forceinline__ void LookUp(int step) {
    if (step == 0) next_index_ = TakeNext(&p_.workspace.list->units_taken, count_, lane_);
    if (next_index_ >= count_) return;
    if (step == 1) next_unit_ = p_.workspace.units[next_index_ / p_.pool.kv_heads];
    if (step == 2) {
      next_pages_.Load(p_, next_unit_.sequence, next_unit_.split * p_.split_kv_size / kPageTokens,
                       lane_);
    }
  }

  __device__ __forceinline__ void Publish(const AttentionUnit& unit, int kv_head) {
    DecodeSlot<kHeadDim>& slot = shared_.slots[slot_at_.stage];
    Wait(&slot.empty, slot_at_.parity ^ 1);
    if (lane_ == 0) {
      slot.unit = unit;
      slot.kv_head = kv_head;
      Copies::Expect(&slot.full, QueryBytes<kHeadDim>(p_, unit.row_count));
    }
    __syncwarp();  // The barrier expects the bytes before they come.
    CopyQueries<kHeadDim, Copies>(p_, kv_head, unit.row_begin, unit.row_count, lane_, slot.queries,
                                  &slot.full);
    copies_.Copied(&slot.full);
    slot_at_.Advance();
  }

  __device__ __forceinline__ void CopyKeysAndValues(const AttentionUnit& unit, int kv_head,
                                                    PageWindow& pages) {
    const int first = unit.split * p_.split_kv_size;
    const int end = min(first + unit.run * p_.split_kv_size, unit.kv_length);
    int step = 0;
    for (int block = first; block < end; block += kBlock) {
      const int block_end = min(block + kBlock, end);
      for (int side = 0; side < 2; ++side) {
        for (int begin = block; begin < block_end; begin += kPageTokens) {
          Wait(&shared_.empty[at_.stage], at_.parity ^ 1);
          CopyTile(unit, kv_head, static_cast<KvSide>(side), begin, end, pages);
          at_.Advance();
          if (step < 3) LookUp(step++);
        }
      }
    }
    while (step < 3) LookUp(step++);
  }

  __device__ __forceinline__ void CopyTile(const AttentionUnit& unit, int kv_head, KvSide side,
                                           int begin, int end, PageWindow& pages) {
    const int index = begin / kPageTokens;
    if (!pages.Holds(index)) pages.Load(p_, unit.sequence, index, lane_);
    const int page = pages.Page(index);
    if (lane_ >= Copies::kThreads) return;
    Barrier* full = &shared_.full[at_.stage];
    if (lane_ == 0) Copies::Expect(full, Shared::kTileBytes);
    Copies::template CopyPage<kHeadDim, kPageTokens>(p_, page, kv_head, side, 0,
                                                     min(end - begin, kPageTokens),
                                                     shared_.tiles[at_.stage], full, lane_);
    copies_.Copied(full);
  }

  const AttentionParameters& p_;
  Shared& shared_;
  int lane_;
  Copies copies_;
  int count_;
  int next_index_;
  AttentionUnit next_unit_;
  PageWindow next_pages_;
  RingPosition<Shared::kStages> at_;
  RingPosition<Shared::kSlots> slot_at_;
};

// Orders what the computing warps wrote to shared memory before what they read after it.
__device__ __forceinline__ void SyncDecodeWarps() {
  asm volatile("bar.sync 1, %0;" ::"n"(kDecodeThreads) : "memory");
}

template <int kHeadDim, int kBlock, typename Copies>
class DecodeRows {
 public:
  using Shared = DecodeShared<kHeadDim, kBlock, Copies>;
  static constexpr int kTiles = kBlock / kPageTokens;           // Of a block.
  static constexpr int kWarpDims = kHeadDim / kDecodeWarps;     // Whose values a warp sums.
  static constexpr int kWarpKeys = kPageTokens / kDecodeWarps;  // Whose scores a warp computes.

  __device__ __forceinline__ DecodeRows(const AttentionParameters& p, Shared& shared)
      : p_(p),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run() {
    while (true) {
      DecodeSlot<kHeadDim>& slot = shared_.slots[slot_at_.stage];
      Wait(&slot.full, slot_at_.parity);
      unit_ = slot.unit;
      if (unit_.row_count == 0) return;
      kv_head_ = slot.kv_head;
      rows_ =
          RowsOfLane(p_, kv_head_, unit_.row_begin, unit_.row_count, unit_.kv_length, lane_ / 4);
      LoadQueries<kHeadDim>(slot.queries, rows_, lane_ / 4, lane_, q_);
      ComputeSplit(unit_.split);
      if (unit_.run < unit_.splits) {
        StorePartial();
      } else {
        ComputeFurtherSplits();
        StoreResult();
      }
      Arrive(&slot.empty);
      __syncwarp();  // All lanes have stored before their warp says so.
      if (lane_ == 0) Arrive(&slot.stored);
      slot_at_.Advance();
    }
  }

 private:
  // The sequence's splits behind its first, each merged into the sums of those before it.
  __device__ __forceinline__ void ComputeFurtherSplits() {
#pragma unroll 1
    for (int split = 1; split < unit_.splits; ++split) {
      float merged_max[2];
      float merged_l[2];
      float merged_o[kWarpDims / 8][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        merged_max[i / 2] = max_[i / 2];
        merged_l[i / 2] = l_[i / 2 * 2];
#pragma unroll
        for (int n = 0; n < kWarpDims / 8; ++n) merged_o[n][i] = o_[n][i];
      }
      ComputeSplit(split);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const bool sees = rows_.position[row] >= split * p_.split_kv_size;
        const MergeFactors factors = MergeFactorsOf(merged_max[row], max_[row], p_.scale);
        max_[row] = sees ? factors.max : merged_max[row];
        l_[2 * row] = sees ? Merged(factors, merged_l[row], l_[2 * row]) : merged_l[row];
#pragma unroll
        for (int i = 2 * row; i < 2 * row + 2; ++i) {
#pragma unroll
          for (int n = 0; n < kWarpDims / 8; ++n) {
            o_[n][i] = sees ? Merged(factors, merged_o[n][i], o_[n][i]) : merged_o[n][i];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void ComputeSplit(int split) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      max_[i / 2] = kMinusInfinity;
      l_[i] = 0;
#pragma unroll
      for (int n = 0; n < kWarpDims / 8; ++n) o_[n][i] = 0;
    }
    const int first = split * p_.split_kv_size;
    const int end = min(first + p_.split_kv_size, unit_.kv_length);
    for (int begin = first; begin < end; begin += kBlock) {
      const int tiles = min(kTiles, (end - begin + kPageTokens - 1) / kPageTokens);
      float s[kTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Scores(tile < tiles, begin + tile * kPageTokens, s[tile]);
      }
      Softmax(s);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile < tiles) AddValues(tile);
      }
    }
  }

  // Scores of this warp's keys in the next tile of the ring; masked ones are minus infinity.
  __device__ __forceinline__ void Scores(bool exists, int begin, float (&s)[2][4]) {
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
      MmaM16N8K16(s[0], q_[k], b[0], b[1]);
      MmaM16N8K16(s[1], q_[k], b[2], b[3]);
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

  // Every lane for itself: tools that look for races follow no warp for which one lane speaks.
  __device__ __forceinline__ void Release() {
    Arrive(&shared_.empty[at_.stage]);
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

  __device__ __forceinline__ void StorePartial() {
    const size_t first = PartialRow(p_, unit_, kv_head_, unit_.split);
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

  const AttentionParameters& p_;
  Shared& shared_;
  int warp_;
  int lane_;
  RingPosition<Shared::kStages> at_;
  RingPosition<Shared::kSlots> slot_at_;
  AttentionUnit unit_;
  int kv_head_;
  PackedRows rows_;
  uint32_t q_[kHeadDim / 16][4];
  float max_[2];
  float l_[4];
  float o_[kWarpDims / 8][4];
};

template <int kHeadDim, int kBlock, typename Copies>
__global__ void __launch_bounds__(kDecodeCtaThreads, 2)
    AttentionDecodeKernel(const __grid_constant__ AttentionParameters p) {
  using Shared = DecodeShared<kHeadDim, kBlock, Copies>;
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shared::kStages; ++stage) {
      InitBarrier(&shared.full[stage], Copies::kArrivals);
      InitBarrier(&shared.empty[stage], kDecodeThreads);
    }
    for (int slot = 0; slot < Shared::kSlots; ++slot) {
      InitBarrier(&shared.slots[slot].full, Copies::kArrivals);
      InitBarrier(&shared.slots[slot].stored, kDecodeWarps);
      InitBarrier(&shared.slots[slot].empty, kDecodeThreads + 32);
    }
    Copies::FenceBarriers();
  }
  __syncthreads();  // Barriers are there before anybody uses them.
  // The next kernel starts when all CTAs have ended: let in earlier, its CTAs would crowd on the
  // multiprocessors that had no work.
  WaitForKernels();
  if (threadIdx.x < kDecodeThreads) {
    DecodeRows<kHeadDim, kBlock, Copies>(p, shared).Run();
  } else if (threadIdx.x < kDecodeThreads + 32) {
    DecodeCopies<kHeadDim, kBlock, Copies>(p, shared).Run();
  } else {
    DecodeMerges<kHeadDim, Shared>(p, shared).Run();
  }
}

}  // namespace lockstep::kernels::cuda
