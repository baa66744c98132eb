#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/host_tensor.h"
#include "kernels/api/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/order/reduction_order.h"

namespace lockstep::kernels::cpu {

// A weight matrix in panels of kPanel outputs: [panel][input][kPanel], so that a vector holds
// neighbouring outputs and a panel streams through memory in the order of the sum. The last panel
// is filled up with zeros. Stored as bf16 when every stacked tensor is, else as fp32. Immutable.
class PackedLinear final : public LinearWeight {
 public:
  static constexpr int kPanel = 32;

  // Stacks `weights` along outputs. INVALID_ARGUMENT names the tensor that is not a matrix, whose
  // inputs differ, or whose bias does not fit; RESOURCE_EXHAUSTED the bytes that were missing.
  static absl::StatusOr<std::unique_ptr<PackedLinear>> Create(std::span<const HostTensor> weights,
                                                              std::span<const HostTensor> biases,
                                                              const LinearLayout& layout,
                                                              ThreadPool& pool);

  int outputs() const override {
    return layout_.gathered_outputs > 0 ? layout_.gathered_outputs : own_outputs_;
  }
  int inputs() const override { return order_.k(); }
  size_t bytes() const override { return packed_.bytes() + bias_.size() * sizeof(float); }

  const ReductionOrder& order() const { return order_; }
  const LinearLayout& layout() const { return layout_; }
  int own_outputs() const { return own_outputs_; }  // Of this rank: rows of the packed matrix.
  int panels() const { return (own_outputs_ + kPanel - 1) / kPanel; }
  DType dtype() const { return dtype_; }
  // First element of a panel; T is float or uint16_t (bf16 bits), as dtype() says.
  template <typename T>
  const T* panel(int index) const {
    return packed_.as<T>() + static_cast<size_t>(index) * static_cast<size_t>(inputs()) * kPanel;
  }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  PackedLinear(int own_outputs, const LinearLayout& layout, ReductionOrder order, DType dtype,
               Buffer packed, std::vector<float> bias)
      : own_outputs_(own_outputs),
        layout_(layout),
        order_(order),
        dtype_(dtype),
        packed_(std::move(packed)),
        bias_(std::move(bias)) {}

  int own_outputs_;
  LinearLayout layout_;
  ReductionOrder order_;
  DType dtype_;
  Buffer packed_;
  std::vector<float> bias_;
};

}  // namespace lockstep::kernels::cpu
