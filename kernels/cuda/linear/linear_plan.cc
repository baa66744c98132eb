#include "kernels/cuda/linear/linear_plan.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<LinearPlan> LinearPlan::Create(cublasLtHandle_t handle,
                                              const CertificateTable& table,
                                              const LinearShape& shape) {
  LinearPlan plan(shape);
  for (const Certificate* certificate : table.Ladder(shape)) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        LinearRung rung, LinearRung::Create(handle, shape, certificate->rows,
                                            {.traits = certificate->traits,
                                             .algorithm = certificate->algorithm,
                                             .workspace_bytes = certificate->workspace_bytes}));
    plan.ladder_.push_back({std::move(rung), certificate->kernels});
  }
  if (plan.ladder_.empty()) {
    return absl::NotFoundError(absl::StrCat("no certificate for a linear layer of ", shape.outputs,
                                            " x ", shape.inputs, " in ", shape.segments,
                                            " segments"));
  }
  return plan;
}

const LinearPlan::Rung& LinearPlan::RungFor(int rows) const {
  const auto rung =
      std::lower_bound(ladder_.begin(), ladder_.end(), rows,
                       [](const Rung& step, int wanted) { return step.rung.rows() < wanted; });
  return rung == ladder_.end() ? ladder_.back() : *rung;
}

int LinearPlan::PaddedRows(int rows) const {
  const int longest = ladder_.back().rung.rows();
  const int whole = rows / longest * longest;
  return rows == whole ? whole : whole + RungFor(rows - whole).rung.rows();
}

bool LinearPlan::PadsY(bool accumulate) const {
  return std::any_of(ladder_.begin(), ladder_.end(),
                     [&](const Rung& step) { return step.rung.WritesPaddingOfY(accumulate); });
}

size_t LinearPlan::WorkspaceBytes(int rows_max, bool accumulate) const {
  size_t bytes = 0;
  for (const Rung& step : ladder_) {
    bytes = std::max(bytes, step.rung.WorkspaceBytes(accumulate));
    if (step.rung.rows() >= rows_max) break;
  }
  return bytes;
}

absl::Status LinearPlan::Run(const LinearCall& call, cudaStream_t stream) const {
  LinearCall piece = call;
  const size_t y_bytes = static_cast<size_t>(shape_.y_stride) * SizeOf(shape_.output);
  const size_t x_bytes = static_cast<size_t>(shape_.x_stride) * SizeOf(DType::kBf16);
  for (int done = 0; done < call.rows; done += piece.rows) {
    piece.rows = std::min(call.rows - done, ladder_.back().rung.rows());
    piece.x = static_cast<const uint8_t*>(call.x) + static_cast<size_t>(done) * x_bytes;
    piece.y = static_cast<uint8_t*>(call.y) + static_cast<size_t>(done) * y_bytes;
    piece.norm.y =
        static_cast<uint16_t*>(call.norm.y) + static_cast<size_t>(done) * call.norm.y_stride;
    LOCKSTEP_RETURN_IF_ERROR(RungFor(piece.rows).rung.Enqueue(piece, stream));
  }
  return absl::OkStatus();
}

std::vector<KernelNode> LinearPlan::ExpectedKernels(int rows) const {
  std::vector<KernelNode> kernels;
  const int longest = ladder_.back().rung.rows();
  for (int done = 0; done < rows; done += longest) {
    const std::vector<KernelNode>& more = RungFor(std::min(rows - done, longest)).kernels;
    kernels.insert(kernels.end(), more.begin(), more.end());
  }
  return kernels;
}

}  // namespace lockstep::kernels::cuda
