#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/faults/planted_faults.h"

namespace lockstep::faults {
namespace {

class SplitByBatchKernels final : public ForwardingKernelSet {
 public:
  using ForwardingKernelSet::ForwardingKernelSet;

  // A device has scratch for the sizes of splits that it was prepared for.
  absl::Status Prepare(const kernels::StepBounds& bounds) override {
    kernels::StepBounds altered = bounds;
    altered.split_kv_size = traits().key_block_tokens;
    LOCKSTEP_RETURN_IF_ERROR(ForwardingKernelSet::Prepare(altered));
    return ForwardingKernelSet::Prepare(bounds);
  }
  void Attention(const kernels::AttentionArgs& args) override {
    kernels::AttentionArgs altered = args;
    if (args.shape.sequences > 1) altered.split_kv_size = traits().key_block_tokens;
    ForwardingKernelSet::Attention(altered);
  }
};

}  // namespace

worker::WorkerHooks SplitByBatch() {
  return {.wrap_kernels = [](std::unique_ptr<kernels::KernelSet> inner) {
    return std::make_unique<SplitByBatchKernels>(std::move(inner));
  }};
}

}  // namespace lockstep::faults
