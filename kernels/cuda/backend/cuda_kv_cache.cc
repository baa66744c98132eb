#include "kernels/cuda/backend/cuda_kv_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

// Two of these bytes are a bf16 NaN.
constexpr int kPoisonByte = 0xff;

size_t PageBytes(const KvCacheShape& shape) {
  return KvTileElements(shape.head_dim) * 2 * static_cast<size_t>(shape.kv_heads) *
         static_cast<size_t>(shape.layers) * sizeof(uint16_t);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaKvCache>> CudaKvCache::Create(
    const KvCacheShape& shape, cudaStream_t stream, std::function<void(absl::Status)> failed) {
  if (shape.block_tokens != kPageTokens || shape.head_dim % kSlabDims != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a KV pool of blocks of ", shape.block_tokens, " tokens and heads of ", shape.head_dim,
        "; blocks have ", kPageTokens, ", heads a multiple of ", kSlabDims));
  }
  const size_t bytes = PageBytes(shape) * static_cast<size_t>(shape.blocks);
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer memory, AllocateDevice(bytes, "KV pool"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaMemsetAsync(memory.as<void>(), kPoisonByte, bytes, stream), "poisoning the KV pool"));
  return std::make_unique<CudaKvCache>(Private(), shape, std::move(memory), stream,
                                       std::move(failed));
}

CudaKvCache::CudaKvCache(Private, const KvCacheShape& shape, Buffer memory, cudaStream_t stream,
                         std::function<void(absl::Status)> failed)
    : shape_(shape),
      bytes_per_block_(PageBytes(shape)),
      memory_(std::move(memory)),
      pool_{.data = memory_.as<uint16_t>(),
            .layers = shape.layers,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim},
      stream_(stream),
      failed_(std::move(failed)) {}

void CudaKvCache::Poison(int block) {
  void* const page = memory_.as<uint8_t>() + static_cast<size_t>(block) * bytes_per_block_;
  failed_(StatusOfCuda(cudaMemsetAsync(page, kPoisonByte, bytes_per_block_, stream_),
                       "poisoning a KV block"));
}

void CudaKvCache::FillWithNoise() {
  constexpr uint32_t kSeed = 1;
  failed_(StatusOfCuda(
      FillUniform(memory_.as<void>(), memory_.bytes() / sizeof(uint16_t), kSeed, stream_),
      "filling the KV pool"));
}

}  // namespace lockstep::kernels::cuda
