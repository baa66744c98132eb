#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/kv_cache.h"
#include "kernels/cuda/kv_layout.h"

namespace lockstep::kernels::cuda {

// The pool of pages that kv_layout.h describes. A block of the interface is a page.
class CudaKvCache final : public KvCache {
  struct Private {};

 public:
  // Enqueues on `stream`, which outlives it. `failed` hears of launches that fail later.
  static absl::StatusOr<std::unique_ptr<CudaKvCache>> Create(
      const KvCacheShape& shape, cudaStream_t stream, std::function<void(absl::Status)> failed);

  const KvCacheShape& shape() const override { return shape_; }
  size_t bytes_per_block() const override { return bytes_per_block_; }
  void Poison(int block) override;
  void FillWithNoise() override;

  const KvPool& pool() const { return pool_; }

  // For Create.
  CudaKvCache(Private, const KvCacheShape& shape, Buffer memory, cudaStream_t stream,
              std::function<void(absl::Status)> failed);

 private:
  KvCacheShape shape_;
  size_t bytes_per_block_;
  Buffer memory_;
  KvPool pool_;
  cudaStream_t stream_;
  std::function<void(absl::Status)> failed_;
};

}  // namespace lockstep::kernels::cuda
