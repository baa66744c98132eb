#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/linear/certificate.h"
#include "kernels/cuda/linear/lt_matmul.h"

namespace lockstep::kernels::cuda {

// The RMSNorm of y that follows a call.
struct LinearNorm {
  const float* weight = nullptr;  // [outputs]; null: none follows.
  float epsilon = 0;
  void* y = nullptr;  // bf16 [rows, outputs]
  size_t y_stride = 0;
};

// One call of a linear layer: y = RN(T(p) [+ bias]), or with `accumulate` y = RN(y + that), in bf16
// (fp32 where the shape says so).
struct LinearCall {
  const void* weight = nullptr;  // bf16 [outputs, inputs]
  const void* bias = nullptr;    // bf16 [outputs], where the shape has one.
  int rows = 0;
  const void* x = nullptr;  // bf16 [rows, inputs]
  void* y = nullptr;        // [rows, outputs]
  bool accumulate = false;  // bf16 outputs only.
  LinearNorm norm;          // With accumulate only.
  // Scratch of this call until it has run; concurrent branches of a graph each have their own.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// A step of a ladder: one way to compute a shape that is launched with `rows` rows whatever the
// call's are. Rows of x behind the call's are read and rows of the product written, and neither
// can reach another row. Our Hopper kernel alone computes the call's rows and no more: it takes
// rows by tiles, each by itself, so that its launch is the certified one with fewer tiles. One
// thread at a time.
class LinearRung {
 public:
  // What it takes from a certificate. `handle` outlives the result.
  struct Choice {
    AlgorithmTraits traits;
    OpaqueAlgorithm algorithm = {};
    size_t workspace_bytes = 0;
  };
  static absl::StatusOr<LinearRung> Create(cublasLtHandle_t handle, const LinearShape& shape,
                                           int rows, const Choice& choice);

  int rows() const { return rows_; }

  // Bytes that a call needs: the library's scratch, and products that are not y yet.
  size_t WorkspaceBytes(bool accumulate) const;

  // Whether rows of y behind the call's are overwritten.
  bool WritesPaddingOfY(bool accumulate) const;

  // Only enqueues. 0 < call.rows <= rows().
  absl::Status Enqueue(const LinearCall& call, cudaStream_t stream) const;

  // Whether a product is computed apart from what follows it.
  bool has_product() const { return choice_.traits.engine != LinearEngine::kSm90; }

  // The product alone, before T, bias and residual: what certification looks at where there is one.
  // `pointers.product` is [segments][rows(), outputs].
  absl::Status EnqueueProduct(const ProductPointers& pointers, cudaStream_t stream) const;

 private:
  LinearRung(const LinearShape& shape, int rows, Choice choice, std::optional<LtMatmul> matmul)
      : shape_(shape), rows_(rows), choice_(choice), matmul_(std::move(matmul)) {}

  size_t ProductBytes() const;

  LinearShape shape_;
  int rows_;
  Choice choice_;
  std::optional<LtMatmul> matmul_;  // Of kCublasLt.
};

}  // namespace lockstep::kernels::cuda
