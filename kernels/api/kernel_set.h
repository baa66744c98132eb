#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/attention.h"
#include "kernels/api/buffer.h"
#include "kernels/api/dtype.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/host_tensor.h"
#include "kernels/api/kv_cache.h"
#include "kernels/api/linear.h"
#include "kernels/api/sampling.h"

namespace lockstep::kernels {

// What a backend promises about its bits; every field is part of the contract fingerprint.
struct BackendTraits {
  std::string name;          // "cpu", "cuda"
  std::string architecture;  // GPU model whose bits these are; "x86-64-v3" for every CPU.
  int contract_version = 0;  // Bumped by any change of a canonical order.
  DType activation = DType::kF32;
  DType kv = DType::kF32;
  int kv_block_tokens = 0;
};

struct RopeParameters {
  double theta = 10000;
  int head_dim = 0;
  int positions = 0;
  float attention_scaling = 1;
  // Inverse frequencies [head_dim / 2] when a scaled variant (llama3, yarn) sets its own, else
  // empty.
  std::vector<float> inverse_frequencies;
};

// The ops of one backend on one rank. Ops are enqueued in call order and may run later; Synchronize
// waits for all of them. Arguments in pointers must stay alive until then. Not thread-safe: one
// thread drives a KernelSet. Example:
//   auto kernels = CreateKernelSet({.backend = "cpu", .threads = 2});
//   kernels->Linear({...}); kernels->Synchronize();
class KernelSet {
 public:
  virtual ~KernelSet() = default;
  virtual const BackendTraits& traits() const = 0;

  // RESOURCE_EXHAUSTED names `purpose`, the bytes asked for and the bytes free.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes, std::string_view purpose) = 0;
  virtual void Upload(const void* host, size_t bytes, void* device) = 0;
  virtual void Download(const void* device, size_t bytes, void* host) = 0;
  virtual absl::Status Synchronize() = 0;

  // Weights. Shapes were checked by the caller; `segments` divides the inputs of a row-parallel
  // layer and is 1 otherwise. Several tensors are stacked along outputs (q, k, v; gate, up).
  virtual absl::StatusOr<std::unique_ptr<LinearWeight>> PackLinear(
      std::span<const HostTensor> weights, std::span<const HostTensor> biases, int segments) = 0;
  virtual absl::StatusOr<Buffer> UploadTable(const HostTensor& table) = 0;    // For Embedding.
  virtual absl::StatusOr<Buffer> UploadVector(const HostTensor& vector) = 0;  // To fp32.
  virtual absl::StatusOr<Buffer> MakeRopeTable(const RopeParameters& parameters) = 0;
  virtual absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheShape& shape) = 0;

  virtual void Embedding(const EmbeddingArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void QkvPrepare(const QkvPrepareArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void SwiGlu(const SwiGluArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
  virtual void Sample(const SampleArgs& args) = 0;
  virtual void Logprobs(const LogprobArgs& args) = 0;
};

}  // namespace lockstep::kernels
