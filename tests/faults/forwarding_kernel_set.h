#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/api/kernel_set.h"

namespace lockstep::faults {

// Hands every call to the kernels below. A fault derives from it and overrides the op it spoils.
class ForwardingKernelSet : public kernels::KernelSet {
 public:
  explicit ForwardingKernelSet(std::unique_ptr<kernels::KernelSet> inner)
      : inner_(std::move(inner)) {}

  const kernels::BackendTraits& traits() const override { return inner_->traits(); }
  absl::StatusOr<kernels::DeviceMemory> Memory() override { return inner_->Memory(); }
  absl::StatusOr<kernels::Buffer> Allocate(size_t bytes, std::string_view purpose) override {
    return inner_->Allocate(bytes, purpose);
  }
  void Upload(const void* host, size_t bytes, void* device) override {
    inner_->Upload(host, bytes, device);
  }
  void Download(const void* device, size_t bytes, void* host) override {
    inner_->Download(device, bytes, host);
  }
  absl::Status Synchronize() override { return inner_->Synchronize(); }
  // Ops are not captured: a fault wants to see each of them.
  bool asynchronous() const override { return inner_->asynchronous(); }
  absl::StatusOr<kernels::Buffer> AllocateHost(size_t bytes, std::string_view purpose) override {
    return inner_->AllocateHost(bytes, purpose);
  }
  void BeginStep() override { inner_->BeginStep(); }
  kernels::AuditCounts audit() const override { return inner_->audit(); }
  uint64_t Mark() override { return inner_->Mark(); }
  absl::Status WaitFor(uint64_t mark) override { return inner_->WaitFor(mark); }

  absl::StatusOr<std::unique_ptr<kernels::LinearWeight>> PackLinear(
      std::span<const kernels::HostTensor> weights, std::span<const kernels::HostTensor> biases,
      const kernels::LinearLayout& layout) override {
    return inner_->PackLinear(weights, biases, layout);
  }
  absl::StatusOr<kernels::Buffer> UploadTable(const kernels::HostTensor& table) override {
    return inner_->UploadTable(table);
  }
  bool draws() const override { return inner_->draws(); }
  void Draw(const kernels::DrawArgs& args) override { inner_->Draw(args); }
  absl::StatusOr<kernels::Buffer> UploadVector(const kernels::HostTensor& vector) override {
    return inner_->UploadVector(vector);
  }
  absl::StatusOr<kernels::Buffer> MakeRopeTable(
      const kernels::RopeParameters& parameters) override {
    return inner_->MakeRopeTable(parameters);
  }
  absl::Status Prepare(const kernels::StepBounds& bounds) override {
    return inner_->Prepare(bounds);
  }
  int PaddedRows(int rows) const override { return inner_->PaddedRows(rows); }
  absl::StatusOr<std::unique_ptr<kernels::KvCache>> CreateKvCache(
      const kernels::KvCacheShape& shape) override {
    return inner_->CreateKvCache(shape);
  }

  void Embedding(const kernels::EmbeddingArgs& args) override { inner_->Embedding(args); }
  void RmsNorm(const kernels::RmsNormArgs& args) override { inner_->RmsNorm(args); }
  void Linear(const kernels::LinearArgs& args) override { inner_->Linear(args); }
  void QkvPrepare(const kernels::QkvPrepareArgs& args) override { inner_->QkvPrepare(args); }
  void Attention(const kernels::AttentionArgs& args) override { inner_->Attention(args); }
  void SwiGlu(const kernels::SwiGluArgs& args) override { inner_->SwiGlu(args); }
  void GatherRows(const kernels::GatherRowsArgs& args) override { inner_->GatherRows(args); }
  void CountDrawn(const kernels::CountDrawnArgs& args) override { inner_->CountDrawn(args); }
  void Sample(const kernels::SampleArgs& args) override { inner_->Sample(args); }
  void Logprobs(const kernels::LogprobArgs& args) override { inner_->Logprobs(args); }

 private:
  const std::unique_ptr<kernels::KernelSet> inner_;
};

}  // namespace lockstep::faults
