// A layer's part on this rank, met by the parts of the others. Row-parallel: every rank's sum is
// the subtree of T over its segments, so T over ranks completes it; bias and residual come after
// that, as without ranks. Column-parallel: outputs do not meet at all, they are only put side by
// side.
#include "kernels/cpu/shared_linear.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/packed_linear.h"

namespace lockstep::kernels::cpu {

absl::Status SharedLinear::Check(std::span<const HostTensor> weights,
                                 const LinearLayout& layout) const {
  if (collective_ != nullptr || (!layout.reduced && layout.gathered_outputs == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(weights.empty() ? "linear" : weights[0].name,
                                                 ": a part of a layer, and no other ranks"));
}

absl::Status SharedLinear::status() const {
  return collective_ == nullptr ? absl::OkStatus() : collective_->status();
}

void SharedLinear::Run(OpContext& context, const LinearArgs& args) {
  const auto& weight = static_cast<const PackedLinear&>(*args.weight);
  if (args.rows == 0) return;
  if (weight.layout().reduced) return Reduce(context, args, weight);
  if (weight.layout().gathered_outputs > 0) return Gather(context, args, weight);
  Linear(context, args);
}

void SharedLinear::Reduce(OpContext& context, const LinearArgs& args, const PackedLinear& weight) {
  RunOwnPart(context, args, weight);
  const size_t outputs = static_cast<size_t>(weight.own_outputs());
  collective_->AllReduce(own_.data(), static_cast<size_t>(args.rows) * outputs, own_.data());
  const float* bias = weight.bias();
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    const float* sum = own_.data() + row * outputs;
    float* y = static_cast<float*>(args.y) + row * args.y_stride;
    for (size_t o = 0; o < outputs; ++o) {
      const float value = bias == nullptr ? sum[o] : sum[o] + bias[o];
      y[o] = args.accumulate ? y[o] + value : value;
    }
  }
}

void SharedLinear::Gather(OpContext& context, const LinearArgs& args, const PackedLinear& weight) {
  const float* own = RunOwnPart(context, args, weight);
  collective_->AllGather({.rows = args.rows,
                          .first_column = weight.layout().first_output,
                          .columns = weight.own_outputs(),
                          .x = own},
                         static_cast<float*>(args.y), args.y_stride);
}

const float* SharedLinear::RunOwnPart(OpContext& context, const LinearArgs& args,
                                      const PackedLinear& weight) {
  const size_t outputs = static_cast<size_t>(weight.own_outputs());
  const size_t count = static_cast<size_t>(args.rows) * outputs;
  if (own_.size() < count) own_.resize(count);
  LinearArgs part = args;
  part.y = own_.data();
  part.y_stride = outputs;
  part.accumulate = false;
  Linear(context, part);
  return own_.data();
}

}  // namespace lockstep::kernels::cpu
