#include "kernels/order/reduction_order.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace lockstep::kernels {

absl::StatusOr<ReductionOrder> ReductionOrder::Create(std::string_view layer,
                                                      const ReductionShape& shape) {
  const auto refuse = [&](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat(absl::string_view(layer.data(), layer.size()), ": ", why...));
  };
  if (shape.n <= 0 || shape.k <= 0) {
    return refuse("a matrix of ", shape.n, " outputs and ", shape.k, " inputs has no products");
  }
  if (shape.segments <= 0 || !std::has_single_bit(static_cast<unsigned>(shape.segments))) {
    return refuse("reduction_segments = ", shape.segments, " is not a power of two");
  }
  if (shape.segments > 1 &&
      (shape.k % shape.segments != 0 || (shape.k / shape.segments) % kSegmentGranularity != 0)) {
    return refuse(shape.k, " inputs do not split into ", shape.segments,
                  " equal segments that are multiples of ", kSegmentGranularity);
  }
  return ReductionOrder(shape.k, shape.segments);
}

}  // namespace lockstep::kernels
