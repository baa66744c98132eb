#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/collective.h"
#include "kernels/api/host_tensor.h"
#include "kernels/api/linear.h"
#include "kernels/cpu/ops.h"

namespace lockstep::kernels::cpu {

class PackedLinear;

// Linear layers of which every rank holds a part (LinearLayout), and all others. Its ranks must run
// the same layers in the same order.
class SharedLinear {
 public:
  // Null: there are no other ranks.
  explicit SharedLinear(std::shared_ptr<Collective> collective)
      : collective_(std::move(collective)) {}

  // INVALID_ARGUMENT for a part of a layer where there are no ranks to share it with.
  absl::Status Check(std::span<const HostTensor> weights, const LinearLayout& layout) const;
  void Run(OpContext& context, const LinearArgs& args);
  // Why results are not to be used: the ranks have lost each other.
  absl::Status status() const;

 private:
  void Reduce(OpContext& context, const LinearArgs& args, const PackedLinear& weight);
  void Gather(OpContext& context, const LinearArgs& args, const PackedLinear& weight);
  // This rank's part of the layer, [rows, own outputs].
  const float* RunOwnPart(OpContext& context, const LinearArgs& args, const PackedLinear& weight);

  const std::shared_ptr<Collective> collective_;
  std::vector<float> own_;  // Grows to the largest part seen.
};

}  // namespace lockstep::kernels::cpu
