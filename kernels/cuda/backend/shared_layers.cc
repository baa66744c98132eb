#include "kernels/cuda/backend/shared_layers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::kernels::cuda {

void SharedLayers::Add(const CudaLinearWeight& weight) {
  const LinearLayout& layout = weight.layout();
  if (layout.reduced) {
    reduced_width_ = std::max(reduced_width_, static_cast<size_t>(weight.outputs()) *
                                                  static_cast<size_t>(weight.parts()));
  }
  if (layout.gathered_outputs > 0) {
    gathered_ = {.first_column = layout.first_output, .columns = weight.part_shape().outputs};
  }
}

absl::Status SharedLayers::Reserve(int rows, int gathered_rows) {
  rows_max_ = rows;
  const size_t elements =
      std::max(reduced_width_ * static_cast<size_t>(rows),
               static_cast<size_t>(gathered_.columns) * static_cast<size_t>(gathered_rows));
  return end_->Reserve(elements * sizeof(float), gathered_);
}

absl::Status SharedLayers::Reduce(const LinearArgs& args, const CudaLinearWeight& weight,
                                  const LinearNorm& norm, RunProduct run) {
  const int parts = weight.parts();
  const int ranks = end_->ranks();
  if (args.rows > rows_max_ || parts * ranks > kPeersMax || args.output_f32) {
    return absl::InternalError(absl::StrCat("a shared linear layer of ", args.rows, " rows and ",
                                            parts * ranks, " segments was not prepared for"));
  }
  // Parts lie at the same places on every rank, whatever rung each rank pads its products to.
  const size_t part_stride = static_cast<size_t>(rows_max_) * static_cast<size_t>(weight.outputs());
  float* const mine = end_->BeginShow();
  const LinearShape& shape = weight.part_shape();
  for (int part = 0; part < parts; ++part) {
    run(shape, {.weight = weight.part(part),
                .rows = args.rows,
                .x = static_cast<const uint16_t*>(args.x) +
                     static_cast<size_t>(part) * static_cast<size_t>(shape.inputs),
                .y = mine + static_cast<size_t>(part) * part_stride});
  }
  return end_->AddShown({.part_count = parts,
                         .part_stride = part_stride,
                         .use = {.rows = args.rows,
                                 .outputs = weight.outputs(),
                                 .y = static_cast<uint16_t*>(args.y),
                                 .y_stride = args.y_stride,
                                 .accumulate = args.accumulate,
                                 .norm_weight = norm.weight,
                                 .norm_epsilon = norm.epsilon,
                                 .normed = static_cast<uint16_t*>(norm.y),
                                 .normed_stride = norm.y_stride}});
}

absl::Status SharedLayers::Gather(const LinearArgs& args, const CudaLinearWeight& weight,
                                  RunProduct run) {
  float* const mine = end_->GatherBuffer();
  run(weight.part_shape(), {.weight = weight.part(0), .rows = args.rows, .x = args.x, .y = mine});
  ColumnShare share = gathered_;
  share.rows = args.rows;
  share.x = mine;
  end_->AllGather(share, static_cast<float*>(args.y), args.y_stride);
  return absl::OkStatus();
}

}  // namespace lockstep::kernels::cuda
