#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/linear/linear_shape.h"

// Our own kernels of linear layers. They only enqueue, and return the launch's error;
// cudaErrorInvalidValue says that arguments break the shape contract.
namespace lockstep::kernels::cuda {

// The definition of a product: for every row and output, per segment, groups of 16 inputs in
// ascending order from zero, one tensor-core step each. Writes what ProductType says: y with one
// segment (bias added in fp32, one rounding), partial sums [segments][rows, outputs] with several.
struct ReferenceCall {
  LinearShape shape;
  int rows = 0;
  const void* weight = nullptr;  // bf16 [outputs, inputs]
  const void* bias = nullptr;    // bf16 [outputs] or null.
  const void* x = nullptr;       // bf16 [rows, inputs]
  void* product = nullptr;
};
cudaError_t LinearReference(const ReferenceCall& call, cudaStream_t stream);

// What follows a product. `partials` are fp32 [segments][.., outputs], `partial_stride` elements
// apart, or y in bf16 with one segment.
//   value = RNbf16(T(partials) [+ bias]);  y = accumulate ? RNbf16(y + value) : value
struct CombineCall {
  LinearShape shape;  // One segment means that `partials` holds bf16 values and no bias is added.
  int rows = 0;
  const void* partials = nullptr;
  size_t partial_stride = 0;
  const void* bias = nullptr;
  void* y = nullptr;  // bf16 [rows, outputs], rows y_stride apart.
  bool accumulate = false;
};
cudaError_t LinearCombine(const CombineCall& call, cudaStream_t stream);

// Operands that make an order of additions visible. Each row of x is one of eight kinds: sums that
// cancel to zero among values of 25 binary orders of magnitude, so that nothing but the rounding of
// every step is left; wide sums that do not cancel; zeros of both signs; denormals; one-hot rows;
// and values near the ends of the range. Row r is of kind r % 8; inputs of the weight repeat with a
// period of inputs / 16, which is what lets rows cancel in every segment.
inline constexpr int kAdversarialKinds = 8;
cudaError_t FillAdversarialX(void* x, int rows, int inputs, int stride, cudaStream_t stream);
cudaError_t FillAdversarialWeight(void* weight, int outputs, int inputs, cudaStream_t stream);
// Values in (-1, 1) from a hash, for timing: zeros would run faster than real data.
cudaError_t FillUniform(void* values, size_t count, uint32_t seed, cudaStream_t stream);

// Adds to *differing the number of elements of a [rows, columns] matrix whose bits differ.
struct CompareCall {
  const void* a = nullptr;
  const void* b = nullptr;
  size_t a_stride = 0;  // Elements between rows.
  size_t b_stride = 0;
  int rows = 0;
  int columns = 0;
  DType type = DType::kBf16;
};
cudaError_t CountDifferences(const CompareCall& call, unsigned long long* differing,
                             cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
