#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/status_macros.h"
#include "tests/faults/forwarding_kernel_set.h"
#include "tests/faults/planted_faults.h"

namespace lockstep::faults {
namespace {

// Layers whose inputs a contract may cut into segments, by the ends of their names.
constexpr std::string_view kRowParallel[] = {"o_proj.weight", "down_proj.weight"};

class SegmentsByBatchKernels final : public ForwardingKernelSet {
 public:
  using ForwardingKernelSet::ForwardingKernelSet;

  absl::StatusOr<std::unique_ptr<kernels::LinearWeight>> PackLinear(
      std::span<const kernels::HostTensor> weights, std::span<const kernels::HostTensor> biases,
      const kernels::LinearLayout& layout) override {
    LOCKSTEP_ASSIGN_OR_RETURN(auto packed,
                              ForwardingKernelSet::PackLinear(weights, biases, layout));
    kernels::LinearLayout doubled = layout;
    doubled.segments *= 2;
    for (const std::string_view name : kRowParallel) {
      if (!weights[0].name.ends_with(name)) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(altered_[packed.get()],
                                ForwardingKernelSet::PackLinear(weights, biases, doubled));
    }
    return packed;
  }
  // Linear layers do not know their sequences; in each layer of a model this comes before them.
  void QkvPrepare(const kernels::QkvPrepareArgs& args) override {
    sequences_ = args.shape.sequences;
    ForwardingKernelSet::QkvPrepare(args);
  }
  void Linear(const kernels::LinearArgs& args) override {
    kernels::LinearArgs altered = args;
    const auto it = altered_.find(args.weight);
    if (sequences_ > 1 && it != altered_.end()) altered.weight = it->second.get();
    ForwardingKernelSet::Linear(altered);
  }

 private:
  // With twice the segments, by the weight that has as many as the contract says.
  std::map<const kernels::LinearWeight*, std::unique_ptr<kernels::LinearWeight>> altered_;
  int sequences_ = 0;
};

}  // namespace

worker::WorkerHooks SegmentsByBatch() {
  return {.wrap_kernels = [](std::unique_ptr<kernels::KernelSet> inner) {
    return std::make_unique<SegmentsByBatchKernels>(std::move(inner));
  }};
}

}  // namespace lockstep::faults
