#pragma once

#include "kernels/cuda/device/attention_order.cuh"
#include "kernels/cuda/device/attention_parameters.cuh"
#include "kernels/cuda/device/primitive/barrier.cuh"
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

// Rows [row_begin, row_begin + row_count) of the step, the last of which sees `kv_length` keys.
// `first` is the packed row of this lane's first one; the other is 8 later.
__device__ __forceinline__ PackedRows RowsOfLane(const AttentionParameters& p, int kv_head,
                                                 int row_begin, int row_count, int kv_length,
                                                 int first) {
  PackedRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int packed = first + 8 * i;
    const int token = packed / p.group;
    const bool exists = token < row_count;
    rows.row[i] = exists ? row_begin + token : -1;
    rows.head[i] = kv_head * p.group + packed % p.group;
    rows.position[i] = exists ? kv_length - row_count + token : -1;
  }
  return rows;
}

// Bytes from one query to the next in shared memory: rows of a fragment fall on other banks.
template <int kHeadDim>
inline constexpr int kQueryPitch = kHeadDim * 2 + 16;

// Copies the queries of rows to shared memory, one packed row after the other. For a whole warp,
// once the barrier expects QueryBytes.
template <int kHeadDim, typename Copies>
__device__ __forceinline__ void CopyQueries(const AttentionParameters& p, int kv_head,
                                            int row_begin, int row_count, int lane, uint8_t* shared,
                                            Barrier* barrier) {
  const size_t width = static_cast<size_t>(p.q_heads + 2 * p.pool.kv_heads) * kHeadDim;
#pragma unroll 1
  for (int packed = lane; packed < row_count * p.group; packed += 32) {
    const uint16_t* query = p.qkv + static_cast<size_t>(row_begin + packed / p.group) * width +
                            static_cast<size_t>(kv_head * p.group + packed % p.group) * kHeadDim;
    Copies::template CopyRow<kHeadDim * 2>(shared + packed * kQueryPitch<kHeadDim>, query, barrier);
  }
}

template <int kHeadDim>
__device__ __forceinline__ uint32_t QueryBytes(const AttentionParameters& p, int row_count) {
  return static_cast<uint32_t>(row_count * p.group * kHeadDim * 2);
}

// Fragments of the left operand: k-group k holds dims 16k..16k+15. `first` as in RowsOfLane.
template <int kHeadDim>
__device__ __forceinline__ void LoadQueries(const uint8_t* shared, const PackedRows& rows,
                                            int first, int lane, uint32_t (&q)[kHeadDim / 16][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint8_t* query = shared + (first + 8 * i) * kQueryPitch<kHeadDim> + lane % 4 * 4;
    const bool exists = rows.row[i] >= 0;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      q[k][i] = exists ? *reinterpret_cast<const uint32_t*>(query + 32 * k) : 0;
      q[k][i + 2] = exists ? *reinterpret_cast<const uint32_t*>(query + 32 * k + 16) : 0;
    }
  }
}

// The same from global memory, for many rows of which each is used once.
template <int kHeadDim>
__device__ __forceinline__ void LoadQueriesFromGlobal(const AttentionParameters& p,
                                                      const PackedRows& rows, int lane,
                                                      uint32_t (&q)[kHeadDim / 16][4]) {
  const size_t width = static_cast<size_t>(p.q_heads + 2 * p.pool.kv_heads) * kHeadDim;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool exists = rows.row[i] >= 0;
    const uint16_t* query = p.qkv + static_cast<size_t>(exists ? rows.row[i] : 0) * width +
                            static_cast<size_t>(rows.head[i]) * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      q[k][i] = exists ? *reinterpret_cast<const uint32_t*>(query + 16 * k) : 0;
      q[k][i + 2] = exists ? *reinterpret_cast<const uint32_t*>(query + 16 * k + 8) : 0;
    }
  }
}

// The physical pages of a sequence, 32 at a time, one in each lane of the copying warp: one load
// for many copies.
class PageWindow {
 public:
  // Starts the load of the window that holds logical page `index`.
  __device__ __forceinline__ void Load(const AttentionParameters& p, int sequence, int index,
                                       int lane) {
    first_ = index / 32 * 32;
    const int mine = min(first_ + lane, p.blocks_max - 1);
    page_ = p.block_table[static_cast<size_t>(sequence) * p.blocks_max + mine];
  }
  __device__ __forceinline__ bool Holds(int index) const { return index / 32 * 32 == first_; }
  __device__ __forceinline__ int Page(int index) const {
    return __shfl_sync(0xFFFFFFFF, page_, index % 32);
  }

 private:
  int first_;
  int page_;
};

// The next of `count` items for a CTA that is free; the first of each CTA is its own index. Who
// takes an item decides no bit. A CTA stops at the first index that is no item, so that a launch
// takes count times in all, and the last one sets the counter back. For a whole warp.
__device__ __forceinline__ int TakeNext(uint32_t* taken, int count, int lane) {
  uint32_t before = 0;
  if (lane == 0) {
    // CTAs without a first item take none.
    before = atomicInc(taken, static_cast<uint32_t>(count - 1));
  }
  return static_cast<int>(gridDim.x + __shfl_sync(0xFFFFFFFF, before, 0));
}

// Two neighbouring outputs of a row.
template <int kHeadDim>
__device__ __forceinline__ void StoreOutputs(const AttentionParameters& p, int row, int head,
                                             int dim, float low, float high) {
  uint16_t* y = p.y + (static_cast<size_t>(row) * p.q_heads + head) * kHeadDim + dim;
  *reinterpret_cast<uint32_t*>(y) = PackBf16(low, high);
}

}  // namespace lockstep::kernels::cuda
