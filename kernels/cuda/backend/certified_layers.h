#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/certification.h"
#include "kernels/cuda/kernel_path.h"
#include "kernels/cuda/linear/certificate.h"
#include "kernels/cuda/linear/linear_shape.h"
#include "kernels/cuda/linear/lt_matmul.h"

namespace lockstep::kernels::cuda {

// A shape and the most rows that a call of it has.
struct LayerToCertify {
  LinearShape shape;
  int rows_max = 0;
};

// Certificates of all shapes, each up to its rows: from the file where it has them, else by
// certifying the library's algorithms and our kernels, which takes seconds a shape. The file may be
// empty: none is kept. Portable kernels have a file of their own beside it.
absl::StatusOr<CertificateTable> CertifyLayers(cublasLtHandle_t handle,
                                               std::span<const LayerToCertify> layers,
                                               KernelPath kernels, const std::string& path);

// For normal mode: as CertifyLayers, but of whatever order of additions, and nothing is compared.
// `path` is a file of its own, because a choice is no certificate.
absl::StatusOr<CertificateTable> ChooseFreely(cublasLtHandle_t handle,
                                              std::span<const LayerToCertify> layers,
                                              KernelPath kernels, const std::string& path);

// What CertifyLayers gives for layers as a model names them, as a report for people. Uses the first
// device.
absl::StatusOr<CertificationReport> ReportCertificates(std::span<const LinearLayer> layers,
                                                       const std::string& path);

}  // namespace lockstep::kernels::cuda
