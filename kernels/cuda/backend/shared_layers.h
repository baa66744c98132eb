#pragma once

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/api/linear.h"
#include "kernels/cuda/backend/cuda_weights.h"
#include "kernels/cuda/collective/peer_group.h"
#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/cuda/linear/linear_rung.h"

namespace lockstep::kernels::cuda {

// Linear layers of which every rank holds a part: each rank's products, then what makes one result
// of them. One thread, as the kernel set that it is part of.
class SharedLayers {
 public:
  // Runs one product of a shape that was prepared for.
  using RunProduct = absl::FunctionRef<void(const LinearShape& shape, const LinearCall& call)>;

  explicit SharedLayers(std::shared_ptr<PeerEnd> end) : end_(std::move(end)) {}

  PeerEnd& end() { return *end_; }

  // What the packed weights are: their widths bound the exchange.
  void Add(const CudaLinearWeight& weight);
  // Room for `rows` of a reduced layer's products and `gathered_rows` of lm_head's, both as padded
  // by the plans. All ranks at once.
  absl::Status Reserve(int rows, int gathered_rows);

  // y = RNbf16(T over all ranks' segments), or with `accumulate` onto y, and then its norm.
  absl::Status Reduce(const LinearArgs& args, const CudaLinearWeight& weight,
                      const LinearNorm& norm, RunProduct run);
  // y, fp32, of all ranks' columns.
  absl::Status Gather(const LinearArgs& args, const CudaLinearWeight& weight, RunProduct run);

 private:
  const std::shared_ptr<PeerEnd> end_;
  size_t reduced_width_ = 0;  // Outputs times parts, of the widest reduced layer.
  ColumnShare gathered_;
  int rows_max_ = 0;
};

}  // namespace lockstep::kernels::cuda
