#include "kernels/cuda/backend/cuda_kernel_set.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/backend/audit_turn.h"
#include "kernels/cuda/backend/captured_graph.h"
#include "kernels/cuda/backend/certified_layers.h"
#include "kernels/cuda/backend/cuda_kv_cache.h"
#include "kernels/cuda/backend/cuda_weights.h"
#include "kernels/cuda/backend/kernel_path_of.h"
#include "kernels/cuda/backend/mode_plans.h"
#include "kernels/cuda/backend/shared_layers.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/linear/certificate.h"
#include "kernels/cuda/linear/linear_audit.h"
#include "kernels/cuda/linear/lt_matmul.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"
#include "kernels/cuda/runtime/event.h"
#include "kernels/cuda/runtime/staged_copy.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/order/rope_table.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kFirstDevice = 0;  // Current on every thread that chose no other.

// Results say whose bits they are, and people whose kernels.
std::string ArchitectureOf(const cudaDeviceProp& device, KernelPath kernels) {
  return kernels == KernelPath::kSm90 ? device.name
                                      : absl::StrCat(device.name, ", portable kernels");
}

// Ops cannot return a status: the first failure is kept, and told by Synchronize.
class CudaKernelSet final : public KernelSet {
 public:
  CudaKernelSet(CudaOptions options, const cudaDeviceProp& device, KernelPath kernels)
      : options_(std::move(options)),
        kernels_(kernels),
        traits_{.name = "cuda",
                .architecture = ArchitectureOf(device, kernels),
                .contract_version = kContractVersion,
                .deterministic = !options_.normal,
                .activation = DType::kBf16,
                .kv = DType::kBf16,
                .key_block_tokens = kKvBlock,
                .kv_block_tokens = kPageTokens} {
    schedule_.path = vocabulary_.path = kernels;
    schedule_.multiprocessors = device.multiProcessorCount;
    if (options_.collective != nullptr) {
      shared_ =
          std::make_unique<SharedLayers>(std::static_pointer_cast<PeerEnd>(options_.collective));
    }
  }

  absl::Status Open() {
    LOCKSTEP_ASSIGN_OR_RETURN(stream_, CreateStream(StreamPriority::kHigh));
    LOCKSTEP_ASSIGN_OR_RETURN(staged_, StagedCopy::Create(stream_.get()));
    LOCKSTEP_ASSIGN_OR_RETURN(lt_, CreateLtHandle());
    if (shared_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(shared_->end().Open(stream_.get()));
    for (Event& event : events_) {
      LOCKSTEP_ASSIGN_OR_RETURN(event, CreateEvent());
    }
    return absl::OkStatus();
  }

  const BackendTraits& traits() const override { return traits_; }

  absl::StatusOr<DeviceMemory> Memory() override { return FreeDeviceMemory(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes, std::string_view purpose) override {
    return AllocateDevice(bytes, purpose);
  }
  void Upload(const void* host, size_t bytes, void* device) override {
    if (bytes == 0) return;
    Keep(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_.get()), "upload");
  }
  void Download(const void* device, size_t bytes, void* host) override {
    if (bytes == 0) return;
    Keep(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_.get()), "download");
  }
  absl::Status Synchronize() override {
    Keep(cudaStreamSynchronize(stream_.get()), "waiting for the device");
    return Told();
  }

  bool asynchronous() const override { return true; }
  absl::StatusOr<Buffer> AllocateHost(size_t bytes, std::string_view purpose) override {
    return AllocatePinned(bytes, purpose);
  }
  uint64_t Mark() override {
    Keep(cudaEventRecord(events_[marks_ % events_.size()].get(), stream_.get()), "mark");
    return marks_++;
  }
  // An event that was recorded again since stands for later ops, which is late but not wrong.
  absl::Status WaitFor(uint64_t mark) override {
    Keep(cudaEventSynchronize(events_[mark % events_.size()].get()), "waiting for the device");
    return Told();
  }
  std::unique_ptr<CapturedOps> Capture(const std::function<void()>& enqueue) override;
  void Replay(const CapturedOps& ops) override {
    const auto& graph = static_cast<const CapturedGraph&>(ops);
    Keep(graph.Launch(stream_.get()), "launching a graph");
    if (graph.audited().has_value() && audits()) audit_->CountCopy(*graph.audited());
  }

  void BeginStep() override {
    if (audits()) Keep(audit_->Advance(stream_.get()));
    audit_turn_.Begin();
  }
  bool shadows() const override { return options_.shadows; }
  void SetMode(OpsMode mode) override { mode_ = mode; }
  AuditCounts audit() const override {
    return audit_ == nullptr ? AuditCounts{} : audit_->counts();
  }

  absl::StatusOr<std::unique_ptr<LinearWeight>> PackLinear(std::span<const HostTensor> weights,
                                                           std::span<const HostTensor> biases,
                                                           const LinearLayout& layout) override {
    LinearLayout allowed = layout;
    if (options_.normal) allowed.segments = 1;
    const int segments = allowed.segments * (layout.reduced ? shared_ranks() : 1);
    if (segments > kPeersMax) {
      return absl::InvalidArgumentError(absl::StrCat("reduction_segments = ", segments,
                                                     ": this backend sums at most ", kPeersMax,
                                                     " segments of a layer"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<CudaLinearWeight> packed,
                              CudaLinearWeight::Create(weights, biases, allowed, copier()));
    if (packed->shared()) {
      if (shared_ == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat(weights.front().name, ": a part of a layer, and no other ranks"));
      }
      shared_->Add(*packed);
    }
    if (packed->layout().reduced) {
      reduced_.insert(packed->part_shape());
    } else {
      ++packed_[packed->shape(DType::kBf16)];
    }
    return std::unique_ptr<LinearWeight>(std::move(packed));
  }
  absl::StatusOr<Buffer> UploadTable(const HostTensor& table) override {
    return UploadBf16({&table, 1}, copier());
  }
  bool draws() const override { return true; }
  void Draw(const DrawArgs& args) override { Keep(cuda::Draw(args, stream_.get()), "drawing"); }
  absl::StatusOr<Buffer> UploadVector(const HostTensor& vector) override {
    return UploadF32(vector, copier());
  }
  absl::StatusOr<Buffer> MakeRopeTable(const RopeParameters& parameters) override {
    const std::vector<float> values = kernels::MakeRopeValues(parameters);
    return UploadF32({.name = "rope table",
                      .data = values.data(),
                      .dtype = DType::kF32,
                      .shape = {static_cast<int64_t>(values.size())}},
                     copier());
  }

  absl::Status Prepare(const StepBounds& bounds) override;
  int PaddedRows(int rows) const override {
    return std::max(plans_.PaddedRows(rows), normal_plans_.PaddedRows(rows));
  }
  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheShape& shape) override {
    LOCKSTEP_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaKvCache> cache,
        CudaKvCache::Create(shape, stream_.get(), [this](absl::Status status) { Keep(status); }));
    return std::unique_ptr<KvCache>(std::move(cache));
  }

  void Embedding(const EmbeddingArgs& args) override {
    EmbeddingArgs rounded = args;
    rounded.table_dtype = DType::kBf16;  // UploadTable made it so.
    Keep(cuda::Embedding(rounded, stream_.get()), "embedding");
  }
  void RmsNorm(const RmsNormArgs& args) override {
    Keep(cuda::RmsNorm(args, stream_.get()), "RMSNorm");
  }
  void Linear(const LinearArgs& args) override { RunLinear(args, {}); }
  void LinearAndNorm(const LinearArgs& linear, const RmsNormArgs& norm) override {
    RunLinear(
        linear,
        {.weight = norm.weight, .epsilon = norm.epsilon, .y = norm.y, .y_stride = norm.y_stride});
  }
  void QkvPrepare(const QkvPrepareArgs& args) override {
    Keep(cuda::QkvPrepare({.args = args, .pool = PoolOf(args.kv)}, stream_.get()), "q, k, v");
  }
  void Attention(const AttentionArgs& args) override;
  void SwiGlu(const SwiGluArgs& args) override {
    Keep(cuda::SwiGlu(args, stream_.get()), "SwiGLU");
  }
  void GatherRows(const GatherRowsArgs& args) override {
    Keep(cuda::GatherRows(args, stream_.get()), "gather");
  }
  void CountDrawn(const CountDrawnArgs& args) override {
    Keep(cuda::CountDrawn(args, stream_.get()), "counting what was drawn");
  }
  void Sample(const SampleArgs& args) override {
    Keep(cuda::Sample(args, vocabulary_, stream_.get()), "sampling");
  }
  void Logprobs(const LogprobArgs& args) override {
    Keep(cuda::Logprobs(args, vocabulary_, stream_.get()), "logprobs");
  }

 private:
  int shared_ranks() const { return shared_ == nullptr ? 1 : shared_->end().ranks(); }
  WeightCopier copier() const { return {.staged = staged_.get(), .stream = stream_.get()}; }
  absl::Status CheckRows(const StepBounds& bounds) const;
  absl::Status MakeVocabularyScratch(int vocabulary, int rows_max);
  void RunLinear(const LinearArgs& args, const LinearNorm& norm);
  std::vector<LayerToCertify> LayersWithin(const StepBounds& bounds) const;
  absl::StatusOr<CertificateTable> ChooseAlgorithms(const std::vector<LayerToCertify>& layers,
                                                    bool normal);
  absl::Status PrepareShadows(std::vector<LayerToCertify> layers, const StepBounds& bounds);
  void RunShared(const LinearArgs& args, const CudaLinearWeight& weight, const LinearNorm& norm);
  void RunProduct(const LinearShape& layer, LinearCall call);
  const ModePlans& PlansInUse() const {
    return mode_ == OpsMode::kNormalShadow ? normal_plans_ : plans_;
  }
  void RunAudited(const LinearPlan& plan, const LinearCall& call);
  static const KvPool& PoolOf(const KvCache* kv) {
    return static_cast<const CudaKvCache*>(kv)->pool();
  }
  // Nobody reads results behind an error, and the ring is not emptied any more.
  bool audits() const { return audit_ != nullptr && mode_ == OpsMode::kServing && status_.ok(); }
  void Keep(cudaError_t error, const char* what) {
    if (error != cudaSuccess) Keep(StatusOfCuda(error, what));
  }
  void Keep(absl::Status status) { status_.Update(std::move(status)); }
  // Why results are not to be used.
  absl::Status Told() {
    if (shared_ != nullptr) Keep(shared_->end().status());
    return status_;
  }

  const CudaOptions options_;
  const KernelPath kernels_;
  const BackendTraits traits_;
  AttentionSchedule schedule_;
  VocabularySchedule vocabulary_;
  Buffer vocabulary_scratch_;  // Of portable kernels.
  Stream stream_;
  std::unique_ptr<StagedCopy> staged_;
  LtHandle lt_;
  absl::Status status_;
  std::array<Event, 4> events_;  // Of the last marks.
  uint64_t marks_ = 0;
  // While ops are captured: the kernels that certificates name for them.
  std::vector<KernelNode>* expected_ = nullptr;

  std::unique_ptr<LinearAudit> audit_;  // After Prepare; null without one.
  AuditTurn audit_turn_;
  std::optional<AuditedCall> captured_call_;  // Of the capture that runs.

  std::map<LinearShape, int> packed_;  // How many weights have this shape, as bf16 layers.
  std::set<LinearShape> reduced_;      // Products of layers that ranks reduce.
  ModePlans plans_;
  ModePlans normal_plans_;  // Of shadows; without any it has none.
  OpsMode mode_ = OpsMode::kServing;
  std::unique_ptr<SharedLayers> shared_;  // Null without other ranks.
  Buffer linear_scratch_;
};

absl::StatusOr<CertificateTable> CudaKernelSet::ChooseAlgorithms(
    const std::vector<LayerToCertify>& layers, bool normal) {
  const std::string& path = options_.certificates_path;
  const auto choose = [&] {
    return normal ? ChooseFreely(lt_.get(), layers, kernels_,
                                 path.empty() ? path : absl::StrCat(path, ".normal"))
                  : CertifyLayers(lt_.get(), layers, kernels_, path);
  };
  if (shared_ == nullptr) return choose();
  // In turn: what ranks on one device timed at once would be noise, and the file is the same.
  absl::StatusOr<CertificateTable> table;
  LOCKSTEP_RETURN_IF_ERROR(shared_->end().InTurn([&] {
    table = choose();
    return table.status();
  }));
  return table;
}

std::vector<LayerToCertify> CudaKernelSet::LayersWithin(const StepBounds& bounds) const {
  std::vector<LayerToCertify> layers;
  const auto& lm_head = static_cast<const CudaLinearWeight&>(*bounds.lm_head);
  for (const auto& [shape, count] : packed_) {
    // The largest layer of all never runs with bf16 output.
    if (count == 1 && shape == lm_head.shape(DType::kBf16)) continue;
    layers.push_back({shape, bounds.rows_max});
  }
  for (const LinearShape& shape : reduced_) layers.push_back({shape, bounds.rows_max});
  layers.push_back({lm_head.shape(DType::kF32), bounds.logits_rows_max});
  return layers;
}

absl::Status CudaKernelSet::Prepare(const StepBounds& bounds) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAttention(bounds));
  LOCKSTEP_RETURN_IF_ERROR(CheckRows(bounds));
  const std::vector<LayerToCertify> layers = LayersWithin(bounds);
  LOCKSTEP_ASSIGN_OR_RETURN(const CertificateTable table,
                            ChooseAlgorithms(layers, options_.normal));
  LOCKSTEP_ASSIGN_OR_RETURN(ModePlans plans, ModePlans::Create(lt_.get(), table, layers));
  LOCKSTEP_RETURN_IF_ERROR(options_.normal
                               ? plans.AddFreeAttention(bounds, schedule_, stream_.get())
                               : plans.AddAttention(bounds));
  plans.KeepAttention(std::move(plans_));
  plans_ = std::move(plans);
  if (options_.shadows) LOCKSTEP_RETURN_IF_ERROR(PrepareShadows(layers, bounds));
  const size_t scratch_bytes =
      std::max({size_t{1}, plans_.LinearScratchBytes(), normal_plans_.LinearScratchBytes()});
  LOCKSTEP_ASSIGN_OR_RETURN(linear_scratch_,
                            AllocateDevice(scratch_bytes, "scratch of linear layers"));
  if (shared_ != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(shared_->end().InTurn(
        [&] { return plans_.LoadProducts(layers, linear_scratch_.as<void>(), stream_.get()); }));
    LOCKSTEP_RETURN_IF_ERROR(
        shared_->Reserve(PaddedRows(bounds.rows_max), PaddedRows(bounds.logits_rows_max)));
  }
  if (options_.audit && !options_.normal) {
    LOCKSTEP_ASSIGN_OR_RETURN(audit_, LinearAudit::Create(plans_.shapes()));
  }
  if (kernels_ != KernelPath::kPortable) return absl::OkStatus();
  return MakeVocabularyScratch(bounds.lm_head->outputs(), bounds.logits_rows_max);
}

// Over the same weights: without segments, which are a matter of order.
absl::Status CudaKernelSet::PrepareShadows(std::vector<LayerToCertify> layers,
                                           const StepBounds& bounds) {
  for (LayerToCertify& layer : layers) layer.shape.segments = 1;
  LOCKSTEP_ASSIGN_OR_RETURN(const CertificateTable table,
                            ChooseAlgorithms(layers, /*normal=*/true));
  LOCKSTEP_ASSIGN_OR_RETURN(normal_plans_, ModePlans::Create(lt_.get(), table, layers));
  return normal_plans_.ShareFreeAttention(bounds, schedule_, stream_.get(), plans_);
}

// Kernels of rows hold them whole.
absl::Status CudaKernelSet::CheckRows(const StepBounds& bounds) const {
  if (bounds.lm_head->inputs() > kNormWidthMax) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size = ", bounds.lm_head->inputs(),
                                                   ": this backend's RMSNorm takes at most ",
                                                   kNormWidthMax));
  }
  const int most =
      kernels_ == KernelPath::kPortable ? kPortableVocabularyMax : VocabularyMax(vocabulary_);
  if (bounds.lm_head->outputs() > most) {
    return absl::InvalidArgumentError(absl::StrCat("vocab_size = ", bounds.lm_head->outputs(),
                                                   ": this backend's log-softmax takes at most ",
                                                   most, " ids on this device"));
  }
  return absl::OkStatus();
}

absl::Status CudaKernelSet::MakeVocabularyScratch(int vocabulary, int rows_max) {
  const int rows = std::min(rows_max, 2 * schedule_.multiprocessors);
  LOCKSTEP_ASSIGN_OR_RETURN(
      vocabulary_scratch_,
      AllocateDevice(VocabularyScratchBytes(vocabulary, rows), "scratch of rows of logits"));
  vocabulary_.scratch = vocabulary_scratch_.as<void>();
  vocabulary_.scratch_bytes = vocabulary_scratch_.bytes();
  return absl::OkStatus();
}

std::unique_ptr<CapturedOps> CudaKernelSet::Capture(const std::function<void()>& enqueue) {
  std::vector<KernelNode> expected;
  expected_ = &expected;
  captured_call_.reset();
  const bool serves = mode_ == OpsMode::kServing;
  if (serves) audit_turn_.Begin();
  absl::StatusOr<std::unique_ptr<CapturedGraph>> graph =
      CapturedGraph::Create(stream_.get(), enqueue);
  expected_ = nullptr;
  absl::Status status = graph.status();
  if (status.ok() && serves) status = CheckForeignKernels((*graph)->kernels(), expected);
  if (!status.ok()) {
    Keep(std::move(status));
    return nullptr;
  }
  (*graph)->set_audited(captured_call_);
  return *std::move(graph);
}

void CudaKernelSet::RunLinear(const LinearArgs& args, const LinearNorm& norm) {
  const auto& weight = static_cast<const CudaLinearWeight&>(*args.weight);
  if (args.x_stride != static_cast<size_t>(weight.inputs()) ||
      args.y_stride != static_cast<size_t>(weight.outputs())) {
    return Keep(absl::InternalError(absl::StrCat("a linear layer of ", weight.outputs(), " x ",
                                                 weight.inputs(), " was given other strides")));
  }
  if (weight.shared()) return RunShared(args, weight, norm);
  RunProduct(weight.shape(args.output_f32 ? DType::kF32 : DType::kBf16),
             {.weight = weight.weight(),
              .bias = weight.bias(),
              .rows = args.rows,
              .x = args.x,
              .y = args.y,
              .accumulate = args.accumulate,
              .norm = norm});
}

void CudaKernelSet::RunShared(const LinearArgs& args, const CudaLinearWeight& weight,
                              const LinearNorm& norm) {
  const auto run = [this](const LinearShape& shape, const LinearCall& call) {
    RunProduct(shape, call);
  };
  Keep(weight.layout().reduced ? shared_->Reduce(args, weight, norm, run)
                               : shared_->Gather(args, weight, run));
}

void CudaKernelSet::RunProduct(const LinearShape& layer, LinearCall call) {
  LinearShape shape = layer;
  if (mode_ == OpsMode::kNormalShadow) shape.segments = 1;
  const LinearPlan* const plan = PlansInUse().linear(shape);
  if (plan == nullptr) {
    return Keep(absl::InternalError(absl::StrCat("a linear layer of ", shape.outputs, " x ",
                                                 shape.inputs, " was not prepared for")));
  }
  call.workspace = linear_scratch_.as<void>();
  call.workspace_bytes = linear_scratch_.bytes();
  if (audits() && audit_turn_.IsNext()) {
    RunAudited(*plan, call);
  } else {
    Keep(plan->Run(call, stream_.get()));
  }
  if (expected_ == nullptr) return;
  const std::vector<KernelNode> kernels = plan->ExpectedKernels(call.rows);
  expected_->insert(expected_->end(), kernels.begin(), kernels.end());
}

void CudaKernelSet::RunAudited(const LinearPlan& plan, const LinearCall& call) {
  Keep(audit_->EnqueueBefore(plan.shape(), call, stream_.get()));
  Keep(plan.Run(call, stream_.get()));
  Keep(audit_->EnqueueAfter(plan.shape(), call, stream_.get()));
  const AuditedCall audited = {.shape = plan.shape(),
                               .accumulate = call.accumulate,
                               .weight = call.weight,
                               .bias = call.bias,
                               .rows = call.rows};
  if (expected_ != nullptr) {
    captured_call_ = audited;
  } else if (audits()) {
    audit_->CountCopy(audited);
  }
}

void CudaKernelSet::Attention(const AttentionArgs& args) {
  const ModePlans::Splits splits = PlansInUse().SplitsFor(args);
  AttentionCall call = {.args = args,
                        .pool = PoolOf(args.kv),
                        .limits = splits.limits,
                        .workspace = splits.workspace,
                        .schedule = schedule_};
  call.args.split_kv_size = splits.size;
  // All layers of a step share its list of work.
  if (args.layer == 0) Keep(PlanAttention(call, stream_.get()), "planning attention");
  Keep(cuda::Attention(call, stream_.get()), "attention");
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelSet>> CreateCudaKernelSet(const CudaOptions& options) {
  if (options.shadows && (options.normal || options.collective != nullptr)) {
    return absl::InvalidArgumentError(
        "shadows: compare deterministic mode on one rank with normal mode");
  }
  const int index = options.collective == nullptr
                        ? kFirstDevice
                        : static_cast<const PeerEnd&>(*options.collective).device();
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaSetDevice(index), "choosing the device"));
  LOCKSTEP_ASSIGN_OR_RETURN(const cudaDeviceProp device, PropertiesOf(index));
  LOCKSTEP_ASSIGN_OR_RETURN(KernelPath path, KernelPathOf(device.name, device.major, device.minor));
  if (options.portable_kernels) path = KernelPath::kPortable;
  auto kernels = std::make_unique<CudaKernelSet>(options, device, path);
  LOCKSTEP_RETURN_IF_ERROR(kernels->Open());
  return std::unique_ptr<KernelSet>(std::move(kernels));
}

}  // namespace lockstep::kernels::cuda
