#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"

namespace lockstep::kernels {

struct KvCacheShape {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int blocks = 0;        // Blocks in the pool; a block holds `block_tokens` tokens of every layer.
  int block_tokens = 0;  // BackendTraits::kv_block_tokens.
};

// The paged KV pool of one rank. The layout inside a block is the backend's own. Blocks start
// poisoned with NaN and may be poisoned again by tests: an op that reads a row beyond a sequence's
// length shows it.
class KvCache {
 public:
  virtual ~KvCache() = default;
  virtual const KvCacheShape& shape() const = 0;
  virtual size_t bytes_per_block() const = 0;
  // Fills one block of every layer with NaN. For tests and for KV debugging.
  virtual void Poison(int block) = 0;
  // Fills all blocks with small numbers, for measuring attention over keys that nobody computed.
  virtual void FillWithNoise() = 0;
};

}  // namespace lockstep::kernels
