#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/api/sampling.h"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"

// Counts an id that the step before has drawn, one CTA a row. Integers, each row by itself:
// placement-invariant.
namespace lockstep::kernels::cuda {

inline constexpr int kCountThreads = 256;

__global__ void __launch_bounds__(kCountThreads)
    CountDrawnKernel(const __grid_constant__ CountDrawnArgs args) {
  WaitForKernels();
  AllowNextKernel();
  const SamplingRow& row = args.row_params[blockIdx.x];
  if (row.drawn_slot < 0) return;
  const int32_t id = args.drawn_ids[row.drawn_slot];
  if (id < 0) return;
  const int last = row.count_end - 1;
  bool found = false;
  for (int i = row.count_begin + static_cast<int>(threadIdx.x); i < last; i += kCountThreads) {
    if (args.counts[i].id != id) continue;
    ++args.counts[i].output_count;
    found = true;
  }
  // Nobody else has the id, or one thread does.
  if (!__syncthreads_or(found) && threadIdx.x == 0) args.counts[last] = {id, 1, 0};
}

}  // namespace lockstep::kernels::cuda
