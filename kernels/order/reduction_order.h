#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/api/dtype.h"

namespace lockstep::kernels {

// What decides the order of additions of a matrix product. The number of rows is not here, and
// must not come: an order that could see the batch would not be one order.
struct ReductionShape {
  int n = 0;                      // Outputs.
  int k = 0;                      // Inputs, the reduced dimension.
  DType dtype = DType::kF32;      // Of the weights as stored.
  std::string_view arch = "cpu";  // BackendTraits::architecture.
  int segments = 1;               // `reduction_segments` for row-parallel layers, else 1.
};

// The order in which one output element adds its k products: `segments` equal runs of ascending k,
// each from zero, combined by T. Immutable.
class ReductionOrder {
 public:
  // A segment is a multiple of this many inputs, so that tensor-core groups and KV heads never
  // straddle a border.
  static constexpr int kSegmentGranularity = 64;

  // INVALID_ARGUMENT, naming the layer and both numbers, unless segments is a power of two that
  // cuts k into equal multiples of kSegmentGranularity. One segment takes any k.
  static absl::StatusOr<ReductionOrder> Create(std::string_view layer, const ReductionShape& shape);

  int k() const { return k_; }
  int segments() const { return segments_; }
  int segment_length() const { return k_ / segments_; }
  int segment_begin(int segment) const { return segment * segment_length(); }
  int segment_end(int segment) const { return (segment + 1) * segment_length(); }

 private:
  ReductionOrder(int k, int segments) : k_(k), segments_(segments) {}

  int k_;
  int segments_;
};

}  // namespace lockstep::kernels
