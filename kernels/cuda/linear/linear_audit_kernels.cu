#include "kernels/cuda/linear/linear_audit_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/linear_audit.cuh"
#include "kernels/cuda/launch.h"

namespace lockstep::kernels::cuda {
namespace {

bool IsWhole(const AuditedMatrix& matrix) {
  return matrix.stride_bytes % sizeof(uint4) == 0 && matrix.row_bytes % sizeof(uint4) == 0 &&
         matrix.ring_stride_bytes % sizeof(uint4) == 0 &&
         matrix.row_bytes <= matrix.ring_stride_bytes;
}

}  // namespace

cudaError_t CopyAuditedRows(const AuditCopy& copy, cudaStream_t stream) {
  if (copy.rows_copied <= 0 || copy.rows_copied > copy.rows ||
      copy.rows_copied > copy.rows_per_slot || copy.slots <= 0 || !IsWhole(copy.first) ||
      !IsWhole(copy.second)) {
    return cudaErrorInvalidValue;
  }
  const size_t row_bytes = std::max(copy.first.row_bytes, copy.second.row_bytes);
  const dim3 grid(static_cast<unsigned>(copy.rows_copied),
                  static_cast<unsigned>((row_bytes + kAuditPieceBytes - 1) / kAuditPieceBytes));
  return LaunchKernel(CopyAuditedRowsKernel, grid, dim3(kAuditThreads), 0, stream, copy);
}

cudaError_t CompareAuditedRows(const AuditComparison& comparison, cudaStream_t stream) {
  if (comparison.rows_copied <= 0 || comparison.slots <= 0) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(comparison.rows_copied),
                  static_cast<unsigned>(comparison.slots));
  const auto kernel = comparison.type == DType::kF32 ? CompareAuditedRowsKernel<uint32_t>
                                                     : CompareAuditedRowsKernel<uint16_t>;
  return LaunchInOrder(kernel, grid, dim3(kAuditThreads), 0, stream, comparison);
}

}  // namespace lockstep::kernels::cuda
