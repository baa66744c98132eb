#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/linear/certificate.h"
#include "kernels/cuda/linear/linear_shape.h"

// cuBLASLt, as far as linear layers need it.
namespace lockstep::kernels::cuda {

absl::Status StatusOfCublas(cublasStatus_t status, const char* what);

struct LtHandleDeleter {
  void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
};
using LtHandle = std::unique_ptr<cublasLtContext, LtHandleDeleter>;
absl::StatusOr<LtHandle> CreateLtHandle();

// Of the current device and the library that this process has loaded. Reads the library's file
// once: a fraction of a second.
absl::StatusOr<CertificateEnvironment> CurrentEnvironment();

struct ProductPointers {
  const void* weight = nullptr;  // bf16 [outputs, inputs]
  const void* bias = nullptr;    // bf16 [outputs], where the shape has one.
  const void* x = nullptr;       // bf16 [rows, inputs], rows x_stride apart.
  void* product = nullptr;       // ProductType [segments][rows, outputs]; rows y_stride apart with
                                 // one segment, dense with several.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// The products of one shape at one number of rows: descriptors, made once. One thread at a time.
class LtMatmul {
 public:
  enum class Reductions { kNone, kAny };

  // An algorithm that the library offers, and the workspace it wants.
  struct Offer {
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes = 0;
  };

  // `handle` outlives the result.
  static absl::StatusOr<LtMatmul> Create(cublasLtHandle_t handle, const LinearShape& shape,
                                         int rows);

  // What the library offers, best first by its own estimate. kNone asks it to leave out what
  // splits K; whether it does is for certification to see.
  absl::StatusOr<std::vector<Offer>> Offers(Reductions reductions, size_t workspace_bytes) const;

  // Bytes of workspace that the algorithm needs for this product; an error when it does not fit it.
  absl::StatusOr<size_t> Check(const cublasLtMatmulAlgo_t& algorithm) const;

  // Only enqueues.
  absl::Status Enqueue(const cublasLtMatmulAlgo_t& algorithm, const ProductPointers& pointers,
                       cudaStream_t stream) const;

 private:
  struct DescDeleter {
    void operator()(cublasLtMatmulDesc_t desc) const { cublasLtMatmulDescDestroy(desc); }
  };
  struct LayoutDeleter {
    void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
  };
  using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, DescDeleter>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LayoutDeleter>;

  struct LayoutSpec {
    cudaDataType_t type;
    int height;
    int width;
    int64_t leading;
    int batches;
    int64_t batch_stride;
  };
  static absl::StatusOr<Layout> MakeLayout(const LayoutSpec& spec);

  LtMatmul() = default;

  cublasLtHandle_t handle_ = nullptr;
  Desc desc_;
  Layout weight_;
  Layout x_;
  Layout product_;
};

AlgorithmTraits TraitsOf(const cublasLtMatmulAlgo_t& algorithm);
OpaqueAlgorithm OpaqueOf(const cublasLtMatmulAlgo_t& algorithm);
cublasLtMatmulAlgo_t AlgorithmOf(const OpaqueAlgorithm& opaque);

}  // namespace lockstep::kernels::cuda
