#pragma once

#include <cstdint>

#include "kernels/cuda/device/linear_probe.cuh"
#include "kernels/cuda/linear/linear_audit.h"

namespace lockstep::kernels::cuda {

// One CTA copies a row that the step's number picks to the slot that it picks, 8 bytes a thread.
static __global__ void SaveAuditedRowKernel(AuditCopy copy) {
  const uint64_t step = *copy.step;
  const int row = static_cast<int>(MixBits(step) % static_cast<uint64_t>(copy.rows));
  const size_t slot = step % static_cast<uint64_t>(copy.slots);
  const uint2* from = reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(copy.matrix) +
                                                     static_cast<size_t>(row) * copy.stride_bytes);
  uint2* to = reinterpret_cast<uint2*>(static_cast<uint8_t*>(copy.ring) + slot * copy.row_bytes);
  for (size_t i = threadIdx.x; i < copy.row_bytes / sizeof(uint2); i += blockDim.x) to[i] = from[i];
  if (copy.filled != nullptr && threadIdx.x == 0) copy.filled[slot] = 1;
}

}  // namespace lockstep::kernels::cuda
