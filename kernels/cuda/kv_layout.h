#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/contract.h"

// Where an element of K or V lies in the pool. One definition for the kernel that writes, the
// kernels that read, and the tests.
namespace lockstep::kernels::cuda {

// bf16, [page][layer][kv head]{K tile, V tile}. A tile holds the kPageTokens tokens of a page as
// head_dim / 64 slabs of [token][64 dims]. Within a row of 128 bytes the 16-byte chunk c stands at
// c ^ (token % 8): a plain bulk copy then gives shared memory that ldmatrix reads without bank
// conflicts and that wgmma knows as its 128-byte swizzle.
struct KvPool {
  uint16_t* data = nullptr;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;  // A multiple of kSlabDims.
};

enum class KvSide : int { kKeys = 0, kValues = 1 };

inline constexpr int kSlabDims = 64;
inline constexpr int kSlabElements = kPageTokens * kSlabDims;

constexpr size_t KvTileElements(int head_dim) {
  return static_cast<size_t>(kPageTokens) * static_cast<size_t>(head_dim);
}

// Elements before the tile of one side in the pool.
constexpr size_t KvTileOffset(const KvPool& pool, int page, int layer, int head, KvSide side) {
  const size_t row =
      (static_cast<size_t>(page) * static_cast<size_t>(pool.layers) + static_cast<size_t>(layer)) *
          static_cast<size_t>(pool.kv_heads) +
      static_cast<size_t>(head);
  return (row * 2 + static_cast<size_t>(side)) * KvTileElements(pool.head_dim);
}

// Elements before (token, dim) in a tile.
constexpr int KvElementOffset(int token, int dim) {
  const int chunk = (dim % kSlabDims / 8) ^ (token % 8);
  return dim / kSlabDims * kSlabElements + token * kSlabDims + chunk * 8 + dim % 8;
}

}  // namespace lockstep::kernels::cuda
