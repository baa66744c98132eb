#include "kernels/cpu/cpu_kv_cache.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/cpu/scratch.h"

namespace lockstep::kernels::cpu {

absl::StatusOr<std::unique_ptr<CpuKvCache>> CpuKvCache::Create(const KvCacheShape& shape) {
  if (shape.block_tokens != kBlockTokens) {
    return absl::InvalidArgumentError(absl::StrCat("KV blocks of ", shape.block_tokens,
                                                   " tokens; this backend has ", kBlockTokens));
  }
  if (shape.layers <= 0 || shape.kv_heads <= 0 || shape.head_dim <= 0 || shape.blocks <= 0) {
    return absl::InvalidArgumentError("a KV cache needs layers, kv_heads, head_dim and blocks");
  }
  auto cache = std::make_unique<CpuKvCache>(CpuKvCache(shape, Buffer()));
  const size_t bytes = cache->bytes_per_block() * static_cast<size_t>(shape.blocks);
  cache->pool_ = AllocateAligned(bytes);
  if (cache->pool_.bytes() != bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a KV cache of ", bytes, " bytes in ", shape.blocks, " blocks"));
  }
  for (int block = 0; block < shape.blocks; ++block) cache->Poison(block);
  return cache;
}

void CpuKvCache::Poison(int block) {
  LOCKSTEP_CHECK(block >= 0 && block < shape_.blocks) << "block " << block;
  std::fill_n(keys(0, 0, block), FloatsPerBlock(), std::numeric_limits<float>::quiet_NaN());
}

void CpuKvCache::FillWithNoise() {
  constexpr size_t kPeriod = 251;
  const size_t count = FloatsPerBlock() * static_cast<size_t>(shape_.blocks);
  for (size_t i = 0; i < count; ++i) {
    pool_.as<float>()[i] = static_cast<float>(i % kPeriod) / kPeriod - 0.5f;
  }
}

}  // namespace lockstep::kernels::cpu
