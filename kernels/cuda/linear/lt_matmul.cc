#include "kernels/cuda/linear/lt_matmul.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {
namespace {

// More than the library has ever offered.
constexpr int kOffersMax = 64;

template <typename T>
T Attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value = {};
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : T{};
}

template <typename T>
absl::Status Set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name,
                 T value) {
  return StatusOfCublas(
      cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
      "matmul preference");
}

template <typename T>
absl::Status Set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, T value) {
  return StatusOfCublas(cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof(value)),
                        "matmul descriptor");
}

template <typename T>
absl::Status Set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name, T value) {
  return StatusOfCublas(cublasLtMatrixLayoutSetAttribute(layout, name, &value, sizeof(value)),
                        "matrix layout");
}

struct PreferenceDeleter {
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, PreferenceDeleter>;

}  // namespace

absl::Status StatusOfCublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", cublasLtGetStatusString(status));
  switch (status) {
    case CUBLAS_STATUS_INVALID_VALUE:
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return absl::InvalidArgumentError(message);
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<LtHandle> CreateLtHandle() {
  cublasLtHandle_t handle = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCublas(cublasLtCreate(&handle), "cublasLtCreate"));
  return LtHandle(handle);
}

absl::StatusOr<LtMatmul::Layout> LtMatmul::MakeLayout(const LayoutSpec& spec) {
  cublasLtMatrixLayout_t made = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCublas(
      cublasLtMatrixLayoutCreate(&made, spec.type, static_cast<uint64_t>(spec.height),
                                 static_cast<uint64_t>(spec.width), spec.leading),
      "matrix layout"));
  Layout layout(made);
  if (spec.batches > 1) {
    LOCKSTEP_RETURN_IF_ERROR(Set<int32_t>(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, spec.batches));
    LOCKSTEP_RETURN_IF_ERROR(
        Set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, spec.batch_stride));
  }
  return layout;
}

absl::StatusOr<LtMatmul> LtMatmul::Create(cublasLtHandle_t handle, const LinearShape& shape,
                                          int rows) {
  if (!IsSupported(shape) || rows <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("linear layer of ", shape.outputs, " x ",
                                                   shape.inputs, " in ", shape.segments,
                                                   " segments at ", rows, " rows"));
  }
  LtMatmul matmul;
  matmul.handle_ = handle;
  cublasLtMatmulDesc_t desc = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCublas(
      cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul descriptor"));
  matmul.desc_.reset(desc);
  LOCKSTEP_RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  LOCKSTEP_RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N));
  if (shape.bias && shape.segments == 1) {
    LOCKSTEP_RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    LOCKSTEP_RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF));
  }
  // The library counts in columns: a row-major matrix is its transpose there.
  const int length = shape.inputs / shape.segments;
  LOCKSTEP_ASSIGN_OR_RETURN(matmul.weight_, MakeLayout({.type = CUDA_R_16BF,
                                                        .height = length,
                                                        .width = shape.outputs,
                                                        .leading = shape.inputs,
                                                        .batches = shape.segments,
                                                        .batch_stride = length}));
  LOCKSTEP_ASSIGN_OR_RETURN(matmul.x_, MakeLayout({.type = CUDA_R_16BF,
                                                   .height = length,
                                                   .width = rows,
                                                   .leading = shape.x_stride,
                                                   .batches = shape.segments,
                                                   .batch_stride = length}));
  const bool dense = shape.segments > 1;
  LOCKSTEP_ASSIGN_OR_RETURN(
      matmul.product_,
      MakeLayout({.type = ProductType(shape) == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF,
                  .height = shape.outputs,
                  .width = rows,
                  .leading = dense ? shape.outputs : shape.y_stride,
                  .batches = shape.segments,
                  .batch_stride = static_cast<int64_t>(rows) * shape.outputs}));
  return matmul;
}

absl::StatusOr<std::vector<LtMatmul::Offer>> LtMatmul::Offers(Reductions reductions,
                                                              size_t workspace_bytes) const {
  cublasLtMatmulPreference_t made = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCublas(cublasLtMatmulPreferenceCreate(&made), "matmul preference"));
  const Preference preference(made);
  LOCKSTEP_RETURN_IF_ERROR(Set<uint64_t>(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         static_cast<uint64_t>(workspace_bytes)));
  if (reductions == Reductions::kNone) {
    LOCKSTEP_RETURN_IF_ERROR(Set<uint32_t>(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                           CUBLASLT_REDUCTION_SCHEME_NONE));
  }
  for (const auto alignment :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    LOCKSTEP_RETURN_IF_ERROR(Set<uint32_t>(made, alignment, kLinearAlignment));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(kOffersMax);
  int count = 0;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCublas(
      cublasLtMatmulAlgoGetHeuristic(handle_, desc_.get(), weight_.get(), x_.get(), product_.get(),
                                     product_.get(), made, kOffersMax, results.data(), &count),
      "matmul heuristic"));
  std::vector<Offer> offers;
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) {
      offers.push_back({.algorithm = result.algo, .workspace_bytes = result.workspaceSize});
    }
  }
  return offers;
}

absl::StatusOr<size_t> LtMatmul::Check(const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCublas(cublasLtMatmulAlgoCheck(handle_, desc_.get(), weight_.get(), x_.get(),
                                             product_.get(), product_.get(), &algorithm, &result),
                     "matmul algorithm"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCublas(result.state, "matmul algorithm"));
  return result.workspaceSize;
}

absl::Status LtMatmul::Enqueue(const cublasLtMatmulAlgo_t& algorithm,
                               const ProductPointers& pointers, cudaStream_t stream) const {
  if (pointers.bias != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(Set(desc_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias));
  }
  const float one = 1;
  const float zero = 0;
  return StatusOfCublas(cublasLtMatmul(handle_, desc_.get(), &one, pointers.weight, weight_.get(),
                                       pointers.x, x_.get(), &zero, pointers.product,
                                       product_.get(), pointers.product, product_.get(), &algorithm,
                                       pointers.workspace, pointers.workspace_bytes, stream),
                        "matmul");
}

AlgorithmTraits TraitsOf(const cublasLtMatmulAlgo_t& algorithm) {
  const auto number = [&](cublasLtMatmulAlgoConfigAttributes_t name) {
    return static_cast<int>(Attribute<uint32_t>(algorithm, name));
  };
  return {.engine = LinearEngine::kCublasLt,
          .id = number(CUBLASLT_ALGO_CONFIG_ID),
          .tile = number(CUBLASLT_ALGO_CONFIG_TILE_ID),
          .stages = number(CUBLASLT_ALGO_CONFIG_STAGES_ID),
          .split_k = number(CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
          .reduction_scheme = number(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
          .swizzle = number(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
          .custom = number(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
          .inner_shape = Attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
          .cluster_shape = Attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)};
}

OpaqueAlgorithm OpaqueOf(const cublasLtMatmulAlgo_t& algorithm) {
  OpaqueAlgorithm opaque;
  static_assert(sizeof(opaque) == sizeof(algorithm.data));
  std::memcpy(opaque.data(), algorithm.data, sizeof(algorithm.data));
  return opaque;
}

cublasLtMatmulAlgo_t AlgorithmOf(const OpaqueAlgorithm& opaque) {
  cublasLtMatmulAlgo_t algorithm = {};
  std::memcpy(algorithm.data, opaque.data(), sizeof(algorithm.data));
  return algorithm;
}

}  // namespace lockstep::kernels::cuda
