#include "kernels/cuda/linear/linear_audit.h"

#include <cuda_runtime.h>

#include "kernels/cuda/device/linear_audit.cuh"

namespace lockstep::kernels::cuda {

cudaError_t SaveAuditedRow(const AuditCopy& copy, cudaStream_t stream) {
  if (copy.rows <= 0 || copy.slots <= 0 || copy.row_bytes % sizeof(uint2) != 0) {
    return cudaErrorInvalidValue;
  }
  SaveAuditedRowKernel<<<1, 512, 0, stream>>>(copy);
  return cudaGetLastError();
}

}  // namespace lockstep::kernels::cuda
