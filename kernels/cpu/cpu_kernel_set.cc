#include "kernels/cpu/cpu_kernel_set.h"

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/api/bf16.h"
#include "kernels/cpu/cpu_kv_cache.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/shared_linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/order/rope_table.h"

namespace lockstep::kernels::cpu {
namespace {

class CpuKernelSet final : public KernelSet {
 public:
  CpuKernelSet(int threads, std::shared_ptr<Collective> collective)
      : traits_{.name = "cpu",
                .architecture = "x86-64-v3",
                .contract_version = 1,
                .activation = DType::kF32,
                .kv = DType::kF32,
                .key_block_tokens = CpuKvCache::kBlockTokens,
                .kv_block_tokens = CpuKvCache::kBlockTokens},
        pool_(threads),
        scratch_(threads),
        context_{pool_, scratch_},
        shared_linear_(std::move(collective)) {}

  const BackendTraits& traits() const override { return traits_; }

  absl::StatusOr<DeviceMemory> Memory() override { return DeviceMemory(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes, std::string_view purpose) override {
    Buffer buffer = AllocateAligned(bytes);
    if (buffer.bytes() != bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", bytes, " bytes of ",
                       absl::string_view(purpose.data(), purpose.size())));
    }
    return buffer;
  }
  void Upload(const void* host, size_t bytes, void* device) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void Download(const void* device, size_t bytes, void* host) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  absl::Status Synchronize() override { return shared_linear_.status(); }

  absl::StatusOr<std::unique_ptr<LinearWeight>> PackLinear(std::span<const HostTensor> weights,
                                                           std::span<const HostTensor> biases,
                                                           const LinearLayout& layout) override {
    LOCKSTEP_RETURN_IF_ERROR(shared_linear_.Check(weights, layout));
    return PackedLinear::Create(weights, biases, layout, pool_);
  }
  absl::StatusOr<Buffer> UploadTable(const HostTensor& table) override;
  absl::StatusOr<Buffer> UploadVector(const HostTensor& vector) override;
  absl::StatusOr<Buffer> MakeRopeTable(const RopeParameters& parameters) override;
  // Its ops need no choice and no scratch beyond what they have.
  absl::Status Prepare(const StepBounds& /*bounds*/) override { return absl::OkStatus(); }
  int PaddedRows(int rows) const override { return rows; }
  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheShape& shape) override {
    return CpuKvCache::Create(shape);
  }

  void Embedding(const EmbeddingArgs& args) override { cpu::Embedding(context_, args); }
  void RmsNorm(const RmsNormArgs& args) override { cpu::RmsNorm(context_, args); }
  void Linear(const LinearArgs& args) override { shared_linear_.Run(context_, args); }
  void QkvPrepare(const QkvPrepareArgs& args) override { cpu::QkvPrepare(context_, args); }
  void Attention(const AttentionArgs& args) override { cpu::Attention(context_, args); }
  void SwiGlu(const SwiGluArgs& args) override { cpu::SwiGlu(context_, args); }
  void GatherRows(const GatherRowsArgs& args) override { cpu::GatherRows(context_, args); }
  void CountDrawn(const CountDrawnArgs& args) override { cpu::CountDrawn(args); }
  void Sample(const SampleArgs& args) override { cpu::Sample(context_, args); }
  void Logprobs(const LogprobArgs& args) override { cpu::Logprobs(context_, args); }

 private:
  const BackendTraits traits_;
  ThreadPool pool_;
  Scratch scratch_;
  OpContext context_;
  SharedLinear shared_linear_;
};

absl::StatusOr<Buffer> CpuKernelSet::UploadTable(const HostTensor& table) {
  if (table.dtype == DType::kI32) {
    return absl::InvalidArgumentError(absl::StrCat(table.name, ": a table is f32 or bf16"));
  }
  const size_t bytes = ElementCount(table) * SizeOf(table.dtype);
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer, Allocate(bytes, table.name));
  std::memcpy(buffer.as<void>(), table.data, bytes);
  return buffer;
}

absl::StatusOr<Buffer> CpuKernelSet::UploadVector(const HostTensor& vector) {
  if (vector.dtype == DType::kI32) {
    return absl::InvalidArgumentError(absl::StrCat(vector.name, ": a vector is f32 or bf16"));
  }
  const size_t count = ElementCount(vector);
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer, Allocate(count * sizeof(float), vector.name));
  for (size_t i = 0; i < count; ++i) {
    buffer.as<float>()[i] = LoadElement(vector.data, vector.dtype, i);
  }
  return buffer;
}

absl::StatusOr<Buffer> CpuKernelSet::MakeRopeTable(const RopeParameters& parameters) {
  const size_t frequencies = parameters.inverse_frequencies.size();
  if (parameters.head_dim <= 0 || parameters.head_dim % 2 != 0 || parameters.positions <= 0 ||
      parameters.positions >= 1 << 20 || !(parameters.theta > 0) ||
      (frequencies != 0 && frequencies != static_cast<size_t>(parameters.head_dim) / 2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no rotary table for head_dim ", parameters.head_dim, ", ", parameters.positions,
        " positions, theta ", parameters.theta, " and ", frequencies, " frequencies"));
  }
  const std::vector<float> values = MakeRopeValues(parameters);
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer, Allocate(values.size() * sizeof(float), "rotary table"));
  std::memcpy(buffer.as<void>(), values.data(), buffer.bytes());
  return buffer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelSet>> CreateCpuKernelSet(const CpuOptions& options) {
  if (options.threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat("threads = ", options.threads));
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::make_unique<CpuKernelSet>(threads, options.collective);
}

}  // namespace lockstep::kernels::cpu
