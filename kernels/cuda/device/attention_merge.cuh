#pragma once

#include "kernels/cuda/device/attention_rows.cuh"

// What decode does with the sums of a split once they are computed.
namespace lockstep::kernels::cuda {

// A unit under a KV head on its way through the CTA.
template <int kHeadDim>
struct DecodeSlot {
  alignas(16) uint8_t queries[kUnitRows * kQueryPitch<kHeadDim>];
  AttentionUnit unit;  // Without rows: there is none any more.
  int kv_head;
  Barrier full;
  Barrier stored;  // Its sums are in the workspace, or its results stored.
  Barrier empty;
};

// Packed rows before those of one split of the unit's sequence in the workspace.
__device__ __forceinline__ size_t PartialRow(const AttentionParameters& p,
                                             const AttentionUnit& unit, int kv_head, int split) {
  const int packed = unit.row_count * p.group;
  return static_cast<size_t>(unit.partial_row + split * packed) * p.pool.kv_heads +
         kv_head * packed;
}

// Rows of padding become zero: nothing that follows may depend on what was there. For one warp.
template <int kHeadDim>
__device__ __forceinline__ void ZeroPaddingRows(const AttentionParameters& p, int lane) {
  const int row_chunks = p.q_heads * kHeadDim / 8;
  for (int row = p.query_start[p.sequences] + static_cast<int>(blockIdx.x); row < p.rows;
       row += static_cast<int>(gridDim.x)) {
    uint4* y = reinterpret_cast<uint4*>(p.y) + static_cast<size_t>(row) * row_chunks;
    for (int i = lane; i < row_chunks; i += 32) y[i] = make_uint4(0, 0, 0, 0);
  }
}

// Counts splits as arrived and merges those of a sequence when all have. For one warp.
template <int kHeadDim, typename Shared>
class DecodeMerges {
 public:
  __device__ __forceinline__ DecodeMerges(const AttentionParameters& p, Shared& shared)
      : p_(p), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run() {
    ZeroPaddingRows<kHeadDim>(p_, lane_);
    RingPosition<Shared::kSlots> at;
    while (true) {
      DecodeSlot<kHeadDim>& slot = shared_.slots[at.stage];
      Wait(&slot.full, at.parity);
      const AttentionUnit unit = slot.unit;
      if (unit.row_count == 0) return;
      const int kv_head = slot.kv_head;
      // Only then may the slot be used again: two phases of `stored` could not be told apart.
      Wait(&slot.stored, at.parity);
      Arrive(&slot.empty);
      at.Advance();
      if (unit.run < unit.splits && ArrivesLast(unit, kv_head)) {
        for (int packed = 0; packed < unit.row_count * p_.group; packed += kRowsAtOnce) {
          Merge(unit, kv_head, packed);
        }
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kLaneDims = kHeadDim / 32;

  // Who comes last merges everything, in the same order as anybody else would.
  __device__ __forceinline__ bool ArrivesLast(const AttentionUnit& unit, int kv_head) const {
    __threadfence();  // The split's sums are visible before it counts as arrived.
    uint32_t before = 0;
    if (lane_ == 0) {
      // Wraps to 0 at the last arrival, for the next layer.
      before = atomicInc(p_.workspace.arrived + unit.sequence * p_.pool.kv_heads + kv_head,
                         static_cast<uint32_t>(unit.splits - 1));
    }
    before = __shfl_sync(0xFFFFFFFF, before, 0);
    __syncwarp();     // A shuffle orders no memory.
    __threadfence();  // The others' sums are read after their arrivals.
    return before == static_cast<uint32_t>(unit.splits - 1);
  }

  // kRowsAtOnce packed rows from `first`, side by side so that their loads overlap.
  __device__ __forceinline__ void Merge(const AttentionUnit& unit, int kv_head, int first) const {
    const int rows = unit.row_count * p_.group;
    float sums[kRowsAtOnce][kLaneDims];
    float2 states[kRowsAtOnce];  // Raw maximum, row sum.
#pragma unroll 4
    for (int split = 0; split < unit.splits; ++split) {
      const size_t at = PartialRow(p_, unit, kv_head, split);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int packed = min(first + i, rows - 1);
        float next_sums[kLaneDims];
        LoadSums(at + packed, next_sums);
        const float2 next =
            __ldcg(reinterpret_cast<const float2*>(p_.workspace.partial_states) + at + packed);
        const MergeFactors factors = MergeFactorsOf(states[i].x, next.x, p_.scale);
        const bool sees = Position(unit, packed) >= split * p_.split_kv_size;
        if (split == 0) {
          states[i] = next;
        } else if (sees) {
          states[i] = make_float2(factors.max, Merged(factors, states[i].y, next.y));
        }
#pragma unroll
        for (int d = 0; d < kLaneDims; ++d) {
          if (split == 0) {
            sums[i][d] = next_sums[d];
          } else if (sees) {
            sums[i][d] = Merged(factors, sums[i][d], next_sums[d]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int packed = first + i;
      if (packed >= rows) continue;
#pragma unroll
      for (int d = 0; d < kLaneDims; d += 2) {
        StoreOutputs<kHeadDim>(p_, unit.row_begin + packed / p_.group,
                               kv_head * p_.group + packed % p_.group, lane_ * kLaneDims + d,
                               Normalised(sums[i][d], states[i].y),
                               Normalised(sums[i][d + 1], states[i].y));
      }
    }
  }

  // This lane's dims of a partial row, past the first-level cache, which may hold older ones.
  __device__ __forceinline__ void LoadSums(size_t row, float (&sums)[kLaneDims]) const {
    const float* from = p_.workspace.partial_sums + row * kHeadDim + lane_ * kLaneDims;
#pragma unroll
    for (int d = 0; d < kLaneDims; d += 2) {
      const float2 pair = __ldcg(reinterpret_cast<const float2*>(from + d));
      sums[d] = pair.x;
      sums[d + 1] = pair.y;
    }
  }

  __device__ __forceinline__ int Position(const AttentionUnit& unit, int packed) const {
    return unit.kv_length - unit.row_count + packed / p_.group;
  }

  const AttentionParameters& p_;
  Shared& shared_;
  int lane_;
};

}  // namespace lockstep::kernels::cuda
