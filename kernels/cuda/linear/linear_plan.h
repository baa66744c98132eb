#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/linear/certificate.h"
#include "kernels/cuda/linear/linear_rung.h"

namespace lockstep::kernels::cuda {

// A linear layer of one shape, run by what is certified at the call's rows or the next more of the
// ladder, padded up to these (LinearRung says who pads); calls longer than the ladder run in
// pieces. All layers of a shape share one plan. One thread at a time. Example:
//   auto plan = LinearPlan::Create(handle, table, shape);
//   plan->Run({.weight = w, .rows = 5, .x = x, .y = y, .workspace = scratch, …}, stream);
class LinearPlan {
 public:
  // NOT_FOUND names the shape that has no certificate. `handle` outlives the plan.
  static absl::StatusOr<LinearPlan> Create(cublasLtHandle_t handle, const CertificateTable& table,
                                           const LinearShape& shape);

  const LinearShape& shape() const { return shape_; }

  // Rows that x must have in memory (contents may be anything) for a call of `rows`, and y too
  // where PadsY.
  int PaddedRows(int rows) const;
  // Whether rows of y behind the call's may be overwritten, up to PaddedRows.
  bool PadsY(bool accumulate) const;
  // For every call of at most `rows_max` rows.
  size_t WorkspaceBytes(int rows_max, bool accumulate) const;

  // Only enqueues: no synchronisation, no allocation, so that a graph can capture it.
  // INVALID_ARGUMENT when the call breaks the shape contract; UNAVAILABLE when the device is lost.
  absl::Status Run(const LinearCall& call, cudaStream_t stream) const;

  // The kernels that certificates name for a call, for CheckForeignKernels.
  std::vector<KernelNode> ExpectedKernels(int rows) const;

 private:
  struct Rung {
    LinearRung rung;
    std::vector<KernelNode> kernels;
  };

  explicit LinearPlan(const LinearShape& shape) : shape_(shape) {}

  const Rung& RungFor(int rows) const;

  LinearShape shape_;
  std::vector<Rung> ladder_;  // By ascending rows.
};

}  // namespace lockstep::kernels::cuda
