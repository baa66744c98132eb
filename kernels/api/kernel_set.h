#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/attention.h"
#include "kernels/api/audit.h"
#include "kernels/api/buffer.h"
#include "kernels/api/draw.h"
#include "kernels/api/dtype.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/host_tensor.h"
#include "kernels/api/kv_cache.h"
#include "kernels/api/linear.h"
#include "kernels/api/sampling.h"

namespace lockstep::kernels {

// What a backend promises about its bits; every field is part of the contract fingerprint.
struct BackendTraits {
  std::string name;           // "cpu", "cuda"
  std::string architecture;   // GPU model whose bits these are; "x86-64-v3" for every CPU.
  int contract_version = 0;   // Bumped by any change of a canonical order.
  bool deterministic = true;  // False in normal mode, which promises no bits.
  DType activation = DType::kF32;
  DType kv = DType::kF32;
  int key_block_tokens = 0;  // Keys that attention adds as one; divides every split.
  // Tokens of a block of the KV pool; divides the former. Decides no bit, and so is the one field
  // that the fingerprint leaves out.
  int kv_block_tokens = 0;
};

// Memory of the device that a backend runs on, in bytes.
struct DeviceMemory {
  size_t total = 0;  // 0: it is the host's, and nobody's to share out.
  size_t free = 0;   // Now, whoever uses the rest.
};

// Whose ops are enqueued. Shadows measure what determinism costs: nobody reads their results, so
// they are not audited, and they write to a KV pool of their own.
enum class OpsMode {
  kServing,       // As traits() says.
  kShadow,        // The same ops.
  kNormalShadow,  // The ops of normal mode.
};

// Bounds of all steps to come.
struct StepBounds {
  int rows_max = 0;
  int logits_rows_max = 0;
  int sequences_max = 0;
  int context_tokens_max = 0;
  int split_kv_size = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  const LinearWeight* lm_head = nullptr;  // The one layer whose output is fp32.
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

// Ops that were enqueued once and can run again, on the same addresses, with what is there then.
class CapturedOps {
 public:
  virtual ~CapturedOps() = default;
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

  virtual absl::StatusOr<DeviceMemory> Memory() = 0;
  // RESOURCE_EXHAUSTED names `purpose`, the bytes asked for and the bytes free.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes, std::string_view purpose) = 0;
  virtual void Upload(const void* host, size_t bytes, void* device) = 0;
  virtual void Download(const void* device, size_t bytes, void* host) = 0;
  virtual absl::Status Synchronize() = 0;

  // Running ahead of the device. What stands here is for a backend whose ops run at once.
  virtual bool asynchronous() const { return false; }
  // Memory of the host for Upload and Download, which then never wait for the device.
  virtual absl::StatusOr<Buffer> AllocateHost(size_t bytes, std::string_view purpose) {
    return Allocate(bytes, purpose);
  }
  // Names the ops enqueued so far, to wait for them and no later ones.
  virtual uint64_t Mark() { return 0; }
  virtual absl::Status WaitFor(uint64_t /*mark*/) { return Synchronize(); }
  // Keeps the ops that `enqueue` calls, and runs none of them. Null where that gains nothing.
  virtual std::unique_ptr<CapturedOps> Capture(const std::function<void()>& /*enqueue*/) {
    return nullptr;
  }
  virtual void Replay(const CapturedOps& /*ops*/) {}

  // Before the ops of each step. A backend that audits itself looks at one of them, which of them
  // when it is enqueued or captured; what it finds later is an error like that of a lost device.
  virtual void BeginStep() {}
  virtual AuditCounts audit() const { return {}; }

  // Ops enqueued or captured from now on are of this mode. A shadow is possible where shadows() is
  // true; all its ops are between two steps.
  virtual bool shadows() const { return false; }
  virtual void SetMode(OpsMode /*mode*/) {}

  // Weights. Shapes were checked by the caller. Several tensors are stacked along outputs (q, k, v;
  // gate, up).
  virtual absl::StatusOr<std::unique_ptr<LinearWeight>> PackLinear(
      std::span<const HostTensor> weights, std::span<const HostTensor> biases,
      const LinearLayout& layout) = 0;
  virtual absl::StatusOr<Buffer> UploadTable(const HostTensor& table) = 0;  // For Embedding.
  // Whether Draw works, and bf16 matrices may lie in the backend's memory before they are packed.
  virtual bool draws() const { return false; }
  virtual void Draw(const DrawArgs& /*args*/) {}
  virtual absl::StatusOr<Buffer> UploadVector(const HostTensor& vector) = 0;  // To fp32.
  virtual absl::StatusOr<Buffer> MakeRopeTable(const RopeParameters& parameters) = 0;
  // Once, after all weights are packed and before there are activations and a KV pool: chooses what
  // the ops of such steps run and allocates their scratch. RESOURCE_EXHAUSTED when that does not
  // fit, FAILED_PRECONDITION when a layer has no kernel with the contract's bits, by name.
  virtual absl::Status Prepare(const StepBounds& bounds) = 0;
  // Rows that the inputs and outputs of an op on `rows` rows must have room for. What the rows
  // behind `rows` hold is read and overwritten, and reaches no other row. After Prepare.
  virtual int PaddedRows(int rows) const = 0;
  virtual absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheShape& shape) = 0;

  virtual void Embedding(const EmbeddingArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  // A row-parallel layer onto the residual stream, and the norm of what comes next: `linear`
  // accumulates, `norm` reads its output. The bits of the two ops.
  virtual void LinearAndNorm(const LinearArgs& linear, const RmsNormArgs& norm) {
    Linear(linear);
    RmsNorm(norm);
  }
  virtual void QkvPrepare(const QkvPrepareArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void SwiGlu(const SwiGluArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
  virtual void CountDrawn(const CountDrawnArgs& args) = 0;  // Before the Sample of these rows.
  virtual void Sample(const SampleArgs& args) = 0;
  virtual void Logprobs(const LogprobArgs& args) = 0;
};

}  // namespace lockstep::kernels
