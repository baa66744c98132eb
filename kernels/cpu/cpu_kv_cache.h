#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/kv_cache.h"

namespace lockstep::kernels::cpu {

// fp32 KV pool: [block][layer][kv head]{keys [head_dim][kBlockTokens], values
// [kBlockTokens][head_dim]}. Keys are transposed, so that a vector holds the scores of neighbouring
// tokens. Written by QkvPrepare, read by Attention, on the thread that drives the KernelSet.
class CpuKvCache final : public KvCache {
 public:
  static constexpr int kBlockTokens = 32;

  // INVALID_ARGUMENT for another block size, RESOURCE_EXHAUSTED when memory is missing.
  static absl::StatusOr<std::unique_ptr<CpuKvCache>> Create(const KvCacheShape& shape);

  const KvCacheShape& shape() const override { return shape_; }
  size_t bytes_per_block() const override { return FloatsPerBlock() * sizeof(float); }
  void Poison(int block) override;
  void FillWithNoise() override;

  float* keys(int layer, int head, int block) const {
    return pool_.as<float>() +
           (static_cast<size_t>(block) * static_cast<size_t>(shape_.layers * shape_.kv_heads) +
            static_cast<size_t>(layer * shape_.kv_heads + head)) *
               2 * FloatsPerSide();
  }
  float* values(int layer, int head, int block) const {
    return keys(layer, head, block) + FloatsPerSide();
  }

 private:
  CpuKvCache(const KvCacheShape& shape, Buffer pool) : shape_(shape), pool_(std::move(pool)) {}

  size_t FloatsPerSide() const { return static_cast<size_t>(shape_.head_dim) * kBlockTokens; }
  size_t FloatsPerBlock() const {
    return static_cast<size_t>(shape_.layers * shape_.kv_heads) * 2 * FloatsPerSide();
  }

  KvCacheShape shape_;
  Buffer pool_;
};

}  // namespace lockstep::kernels::cpu
