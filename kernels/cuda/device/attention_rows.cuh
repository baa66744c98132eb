#pragma once

#include "kernels/cuda/device/attention_order.cuh"
#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/primitive/bulk_copy_sm90.cuh"
#include "kernels/cuda/device/primitive/mma.cuh"

// Queries and keys on their way into a kernel. The query heads of one KV head are packed into rows
// of the product: packed row r of a tile is token r / group, head r % group of the KV head.
namespace lockstep::kernels::cuda {

// The two rows of a fragment that a lane holds.
struct PackedRows {
  int row[2];       // Of the step; -1 where there is none.
  int head[2];      // Query head.
  int position[2];  // -1 where there is no row: it sees no key.
};

// `first` is the packed row of this lane's first one; the other is 8 later.
__device__ __forceinline__ PackedRows RowsOfLane(const AttentionParameters& p, int kv_head,
                                                 int row_begin, int row_count, int first) {
  PackedRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int packed = first + 8 * i;
    const int token = packed / p.group;
    const bool exists = token < row_count;
    rows.row[i] = exists ? row_begin + token : -1;
    rows.head[i] = kv_head * p.group + packed % p.group;
    rows.position[i] = exists ? p.positions[row_begin + token] : -1;
  }
  return rows;
}

// Fragments of the left operand: k-group k holds dims 16k..16k+15.
template <int kHeadDim>
__device__ __forceinline__ void LoadQueries(const AttentionParameters& p, const PackedRows& rows,
                                            int lane, uint32_t (&q)[kHeadDim / 16][4]) {
  const size_t width = static_cast<size_t>(p.q_heads + 2 * p.pool.kv_heads) * kHeadDim;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint16_t* query = p.qkv + static_cast<size_t>(max(rows.row[i], 0)) * width +
                            static_cast<size_t>(rows.head[i]) * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const bool exists = rows.row[i] >= 0;
      q[k][i] = exists ? *reinterpret_cast<const uint32_t*>(query + 16 * k) : 0;
      q[k][i + 2] = exists ? *reinterpret_cast<const uint32_t*>(query + 16 * k + 8) : 0;
    }
  }
}

// Copies the keys or values of tokens [begin, begin + kTokens) of a sequence to shared memory as
// [slab][token][64 dims]; tokens from `end` on become zero. For one thread; `barrier` gets all
// kTokens * kHeadDim * 2 bytes.
template <int kHeadDim, int kTokens>
__device__ __forceinline__ void LoadTile(const AttentionParameters& p, const int32_t* pages,
                                         int kv_head, KvSide side, int begin, int end,
                                         uint8_t* shared, Barrier* barrier) {
  constexpr int kSlabs = kHeadDim / kSlabDims;
  constexpr uint32_t kRowBytes = kSlabDims * sizeof(uint16_t);
  constexpr uint32_t kSlabBytes = kPageTokens * kRowBytes;
  ArriveExpecting(barrier, kTokens * kHeadDim * sizeof(uint16_t));
#pragma unroll
  for (int part = 0; part < kTokens / kPageTokens; ++part) {
    const int page_begin = begin + part * kPageTokens;
    const int valid = min(max(end - page_begin, 0), kPageTokens);
    const uint8_t* tile = nullptr;
    if (valid > 0) {
      const int page = pages[page_begin / kPageTokens];
      tile = reinterpret_cast<const uint8_t*>(p.pool.data +
                                              KvTileOffset(p.pool, page, p.layer, kv_head, side));
    }
    if (kTokens == kPageTokens && valid == kPageTokens) {
      BulkCopy(shared, tile, kSlabs * kSlabBytes, barrier);
      continue;
    }
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      uint8_t* target = shared + (slab * (kTokens / kPageTokens) + part) * kSlabBytes;
      const uint32_t bytes = static_cast<uint32_t>(valid) * kRowBytes;
      if (bytes > 0) BulkCopy(target, tile + slab * kSlabBytes, bytes, barrier);
      if (bytes < kSlabBytes) {
        BulkCopy(target + bytes, p.workspace.zeros, kSlabBytes - bytes, barrier);
      }
    }
  }
}

// Two neighbouring outputs of a row.
template <int kHeadDim>
__device__ __forceinline__ void StoreOutputs(const AttentionParameters& p, int row, int head,
                                             int dim, float low, float high) {
  uint16_t* y = p.y + (static_cast<size_t>(row) * p.q_heads + head) * kHeadDim + dim;
  *reinterpret_cast<uint32_t*>(y) = PackBf16(low, high);
}

}  // namespace lockstep::kernels::cuda
