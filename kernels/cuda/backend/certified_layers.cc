#include "kernels/cuda/backend/certified_layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/backend/kernel_path_of.h"
#include "kernels/cuda/linear/certifier.h"

namespace lockstep::kernels::cuda {
namespace {

LinearShape ShapeOf(const LinearLayer& layer) {
  return {.outputs = layer.outputs,
          .inputs = layer.inputs,
          .segments = layer.segments,
          .output = layer.output_f32 ? DType::kF32 : DType::kBf16,
          .bias = layer.bias,
          .x_stride = layer.inputs,
          .y_stride = layer.outputs};
}

std::string Describe(const AlgorithmTraits& traits) {
  if (traits.engine == LinearEngine::kSm90) {
    return absl::StrCat("own kernel, tiling ", traits.id, " of ", traits.tile, " rows");
  }
  if (traits.engine == LinearEngine::kMma) {
    return absl::StrCat("own portable kernel, tiling ", traits.id, " of ", traits.tile, " rows");
  }
  return absl::StrCat("cuBLASLt algorithm ", traits.id, ", tile ", traits.tile, ", stages ",
                      traits.stages, ", split_k ", traits.split_k);
}

absl::StatusOr<CertificateTable> MakeTable(cublasLtHandle_t handle,
                                           std::span<const LayerToCertify> layers,
                                           KernelPath kernels, bool any_order, std::string path) {
  if (!path.empty() && kernels == KernelPath::kPortable) path += ".portable";
  // One certifier has one ladder of rows.
  std::map<int, std::set<LinearShape>> shapes_by_rows;
  for (const LayerToCertify& layer : layers) shapes_by_rows[layer.rows_max].insert(layer.shape);
  CertificateTable all({});
  for (const auto& [rows_max, shapes] : shapes_by_rows) {
    LOCKSTEP_ASSIGN_OR_RETURN(const CertificateTable table,
                              LoadOrCertify(handle, {.shapes = {shapes.begin(), shapes.end()},
                                                     .options = {.ladder = DefaultLadder(rows_max),
                                                                 .own_kernels = kernels,
                                                                 .any_order = any_order},
                                                     .path = path}));
    if (all.environment() == CertificateEnvironment()) all = CertificateTable(table.environment());
    // A file holds other models' shapes too.
    for (const Certificate& certificate : table.certificates()) {
      if (shapes.contains(certificate.shape)) all.Add(certificate);
    }
    for (const Refusal& refusal : table.refusals()) {
      if (shapes.contains(refusal.shape)) all.Add(refusal);
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<CertificateTable> CertifyLayers(cublasLtHandle_t handle,
                                               std::span<const LayerToCertify> layers,
                                               KernelPath kernels, const std::string& path) {
  return MakeTable(handle, layers, kernels, /*any_order=*/false, path);
}

absl::StatusOr<CertificateTable> ChooseFreely(cublasLtHandle_t handle,
                                              std::span<const LayerToCertify> layers,
                                              KernelPath kernels, const std::string& path) {
  return MakeTable(handle, layers, kernels, /*any_order=*/true, path);
}

absl::StatusOr<CertificationReport> ReportCertificates(std::span<const LinearLayer> layers,
                                                       const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const cudaDeviceProp device, PropertiesOf(0));
  LOCKSTEP_ASSIGN_OR_RETURN(const KernelPath kernels,
                            KernelPathOf(device.name, device.major, device.minor));
  LOCKSTEP_ASSIGN_OR_RETURN(const LtHandle handle, CreateLtHandle());
  std::map<LinearShape, std::string> names;  // Of all layers of one shape.
  std::vector<LayerToCertify> wanted;
  for (const LinearLayer& layer : layers) {
    const LinearShape shape = ShapeOf(layer);
    if (!IsSupported(shape)) {
      return absl::InvalidArgumentError(absl::StrCat(
          layer.name, ": a linear layer of ", shape.outputs, " outputs and ", shape.inputs,
          " inputs in ", shape.segments, " segments has no kernel on this backend"));
    }
    std::string& name = names[shape];
    absl::StrAppend(&name, name.empty() ? "" : ", ", layer.name);
    wanted.push_back({.shape = shape, .rows_max = layer.rows_max});
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const CertificateTable table,
                            CertifyLayers(handle.get(), wanted, kernels, path));
  const CertificateEnvironment& environment = table.environment();
  CertificationReport report;
  report.environment =
      absl::StrCat(environment.gpu, ", ", environment.multiprocessors,
                   " multiprocessors, cuBLASLt ", environment.library_version, ", library file ",
                   environment.library_digest, ", own kernels ", environment.own_kernels_digest);
  for (const Certificate& certificate : table.certificates()) {
    report.certified.push_back({.layer = names[certificate.shape],
                                .rows = certificate.rows,
                                .algorithm = Describe(certificate.traits),
                                .microseconds = certificate.microseconds,
                                .offered = certificate.offered});
  }
  for (const Refusal& refusal : table.refusals()) {
    report.refused.push_back({.layer = names[refusal.shape],
                              .rows = refusal.rows,
                              .algorithm = Describe(refusal.traits),
                              .differing = refusal.differing,
                              .compared = refusal.compared});
  }
  return report;
}

}  // namespace lockstep::kernels::cuda
