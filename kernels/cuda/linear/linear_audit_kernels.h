#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"

// Kernels of the audit. They only enqueue, and return the launch's error.
namespace lockstep::kernels::cuda {

// Counts the copies that have run, in device memory.
struct AuditClock {
  uint64_t copies = 0;
  uint32_t arrivals = 0;  // CTAs of the copy that runs.
};

// Rows of a matrix on their way to a ring. All sizes are multiples of 16 bytes.
struct AuditedMatrix {
  const void* matrix = nullptr;
  void* ring = nullptr;
  size_t stride_bytes = 0;
  size_t row_bytes = 0;
  size_t ring_stride_bytes = 0;
};

// Copies rows of one or two matrices, the same of both; which rows and to where follows from the
// clock alone. `advances` says that this ends a copy.
struct AuditCopy {
  AuditedMatrix first;
  AuditedMatrix second;  // Null: one matrix.
  AuditClock* clock = nullptr;
  int rows = 0;         // Of the matrices.
  int rows_copied = 0;  // At most `rows`.
  int rows_per_slot = 0;
  int slots = 0;
  bool advances = false;
};
cudaError_t CopyAuditedRows(const AuditCopy& copy, cudaStream_t stream);

// Adds to differing[i] how many of rows [i * rows_per_slot, … + rows_copied) of a and b have other
// bits, not counting places where both are NaN.
struct AuditComparison {
  const void* a = nullptr;
  const void* b = nullptr;
  size_t stride_bytes = 0;
  int columns = 0;
  DType type = DType::kBf16;
  int slots = 0;
  int rows_per_slot = 0;
  int rows_copied = 0;
  uint32_t* differing = nullptr;  // [slots]
};
cudaError_t CompareAuditedRows(const AuditComparison& comparison, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
